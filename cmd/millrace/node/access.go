package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/cluster"
	"github.com/millrace/millrace/cluster/catalog"
)

// Who may do what, as operators change it: metadata's part.

func (m metadata) CreateVHost(ctx context.Context, user, name string) error {
	return answered(m.Cluster.CreateVHost(ctx, user, name))
}

func (m metadata) DeleteVHost(ctx context.Context, name string) error {
	return answered(m.Cluster.DeleteVHost(ctx, name))
}

func (m metadata) CreateUser(ctx context.Context, name string, secret admin.Secret, tags []string) error {
	if _, exists := m.View().User(name); exists {
		return fmt.Errorf("%w: %q", catalog.ErrUserExists, name) // before the work of a hash
	}
	hash, err := hashOf(secret)
	if err != nil {
		return err
	}
	return answered(m.Cluster.CreateUser(ctx, catalog.User{Name: name, Hash: hash, Tags: tags}))
}

func (m metadata) SetPassword(ctx context.Context, name string, secret admin.Secret) error {
	if _, exists := m.View().User(name); !exists {
		return fmt.Errorf("%w: %q", catalog.ErrUserMissing, name)
	}
	hash, err := hashOf(secret)
	if err != nil {
		return err
	}
	return answered(m.ChangeUser(ctx, name, &hash, nil))
}

func (m metadata) SetTags(ctx context.Context, name string, tags []string) error {
	return answered(m.ChangeUser(ctx, name, nil, &tags))
}

func (m metadata) DeleteUser(ctx context.Context, name string) error {
	return answered(m.Cluster.DeleteUser(ctx, name))
}

func (m metadata) SetPermission(ctx context.Context, p admin.Permission) error {
	return answered(m.Cluster.SetPermission(ctx, catalog.SetPermission{
		VHost: p.VHost, User: p.User, Configure: p.Configure, Write: p.Write, Read: p.Read,
	}))
}

func (m metadata) ClearPermission(ctx context.Context, vhost, user string) error {
	return answered(m.Cluster.ClearPermission(ctx, vhost, user))
}

// passwordBytesMax bounds a password: what a client may send before it is let in
// is a frame of 8 KiB.
const passwordBytesMax = 4 << 10

// hashOf is what is stored of a secret; "" is none, so that a certificate alone
// lets the user in.
func hashOf(s admin.Secret) (string, error) {
	switch {
	case s.Password != "" && s.Hash != "":
		return "", fmt.Errorf("%w: a password or a hash, not both", catalog.ErrBadArgument)
	case s.Hash != "":
		algorithm := s.Algorithm
		if algorithm == "" {
			algorithm = "rabbit_password_hashing_sha256"
		}
		hash, err := cluster.ImportHash(algorithm, s.Hash)
		if errors.Is(err, cluster.ErrBadHash) {
			err = fmt.Errorf("%w: %w", catalog.ErrBadArgument, err)
		}
		return hash, err
	case s.Password == "":
		return "", nil
	case len(s.Password) > passwordBytesMax:
		return "", fmt.Errorf("%w: the password has %d bytes, at most %d are allowed", catalog.ErrBadArgument, len(s.Password), passwordBytesMax)
	}
	for _, b := range []byte(s.Password) {
		if b == 0 {
			return "", fmt.Errorf("%w: the password has a zero byte, which no client can send", catalog.ErrBadArgument)
		}
	}
	return cluster.HashPassword([]byte(s.Password)), nil
}
