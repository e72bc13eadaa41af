package catalog

import (
	"regexp"
	"slices"
)

// CreateVHost makes a name space for streams.
type CreateVHost struct {
	Name string `json:"name"`
	// Owner may do everything in it; a name of no user is nobody.
	Owner string `json:"owner,omitempty"`
}

func (*CreateVHost) kind() string { return "vhost.create" }

func (c *CreateVHost) apply(e *edit) []Outcome {
	if r := checkName("virtual host name", c.Name); r != nil {
		return one(r)
	}
	if _, ok := e.vhosts.get(c.Name); ok {
		return one(refuse(ErrVHostExists, "%q", c.Name))
	}
	e.vhosts = e.vhosts.put(c.Name, &VHost{Name: c.Name, Created: e.at})
	e.accessChanged()
	if _, ok := e.users.get(c.Owner); ok {
		all := SetPermission{VHost: c.Name, User: c.Owner, Configure: ".*", Write: ".*", Read: ".*"}
		all.apply(e)
	}
	return one(nil)
}

// DeleteVHost deletes a virtual host with its streams, super streams and
// permissions.
type DeleteVHost struct {
	Name string `json:"name"`
}

func (*DeleteVHost) kind() string { return "vhost.delete" }

func (c *DeleteVHost) apply(e *edit) []Outcome {
	if _, ok := e.vhosts.get(c.Name); !ok {
		return one(refuse(ErrVHostMissing, "%q", c.Name))
	}
	before := e.State // the sequences below run over what was there
	for stream := range before.StreamsOf(c.Name) {
		e.dropStream(stream)
	}
	for super := range before.SuperStreamsOf(c.Name) {
		e.supers = e.supers.remove(key(super.VHost, super.Name))
		e.changes = append(e.changes, Change{Kind: SuperStreamChanged})
	}
	for _, p := range within(before.permissions, c.Name) {
		e.permissions = e.permissions.remove(key(p.VHost, p.User))
	}
	e.vhosts = e.vhosts.remove(c.Name)
	e.accessChanged()
	return one(nil)
}

// PutUser makes a user or gives it another hash and other tags.
type PutUser struct {
	Name string   `json:"name"`
	Hash string   `json:"hash"`
	Tags []string `json:"tags,omitempty"`
	// New refuses to change a user that is there.
	New bool `json:"new,omitempty"`
}

func (*PutUser) kind() string { return "user.put" }

func (c *PutUser) apply(e *edit) []Outcome {
	if r := checkName("user name", c.Name); r != nil {
		return one(r)
	}
	if _, ok := e.users.get(c.Name); ok && c.New {
		return one(refuse(ErrUserExists, "%q", c.Name))
	}
	e.users = e.users.put(c.Name, &User{Name: c.Name, Hash: c.Hash, Tags: sortedTags(c.Tags)})
	e.accessChanged()
	return one(nil)
}

// ChangeUser gives a user another hash or other tags, and leaves what is nil.
type ChangeUser struct {
	Name string    `json:"name"`
	Hash *string   `json:"hash,omitempty"`
	Tags *[]string `json:"tags,omitempty"`
}

func (*ChangeUser) kind() string { return "user.change" }

func (c *ChangeUser) apply(e *edit) []Outcome {
	before, ok := e.users.get(c.Name)
	if !ok {
		return one(refuse(ErrUserMissing, "%q", c.Name))
	}
	after := *before
	if c.Hash != nil {
		after.Hash = *c.Hash
	}
	if c.Tags != nil {
		after.Tags = sortedTags(*c.Tags)
	}
	e.users = e.users.put(c.Name, &after)
	e.accessChanged()
	return one(nil)
}

func sortedTags(tags []string) []string {
	tags = slices.Clone(tags)
	slices.Sort(tags)
	return slices.Compact(tags)
}

// DeleteUser deletes a user with all its permissions.
type DeleteUser struct {
	Name string `json:"name"`
}

func (*DeleteUser) kind() string { return "user.delete" }

func (c *DeleteUser) apply(e *edit) []Outcome {
	if _, ok := e.users.get(c.Name); !ok {
		return one(refuse(ErrUserMissing, "%q", c.Name))
	}
	e.users = e.users.remove(c.Name)
	before := e.State
	for p := range before.Permissions() {
		if p.User == c.Name {
			e.permissions = e.permissions.remove(key(p.VHost, p.User))
		}
	}
	e.accessChanged()
	return one(nil)
}

// SetPermission says what a user may do in a virtual host.
type SetPermission struct {
	VHost     string `json:"vhost"`
	User      string `json:"user"`
	Configure string `json:"configure"`
	Write     string `json:"write"`
	Read      string `json:"read"`
}

func (*SetPermission) kind() string { return "permission.set" }

func (c *SetPermission) apply(e *edit) []Outcome {
	if _, ok := e.vhosts.get(c.VHost); !ok {
		return one(refuse(ErrVHostMissing, "%q", c.VHost))
	}
	if _, ok := e.users.get(c.User); !ok {
		return one(refuse(ErrUserMissing, "%q", c.User))
	}
	p := &Permission{VHost: c.VHost, User: c.User, Configure: c.Configure, Write: c.Write, Read: c.Read}
	if r := p.compile(); r != nil {
		return one(r)
	}
	e.permissions = e.permissions.put(key(c.VHost, c.User), p)
	e.accessChanged()
	return one(nil)
}

func (p *Permission) compile() *Refusal {
	for a, text := range []string{p.Configure, p.Write, p.Read} {
		if text == "" {
			continue
		}
		re, err := regexp.Compile(text)
		if err != nil {
			return refuse(ErrBadArgument, "%s pattern %q: %v", Action(a), text, err)
		}
		p.compiled[a] = re
	}
	return nil
}

// ClearPermission takes a user's access to a virtual host away.
type ClearPermission struct {
	VHost string `json:"vhost"`
	User  string `json:"user"`
}

func (*ClearPermission) kind() string { return "permission.clear" }

// apply takes the absence of an entry for success: there is no access then.
func (c *ClearPermission) apply(e *edit) []Outcome {
	if _, ok := e.vhosts.get(c.VHost); !ok {
		return one(refuse(ErrVHostMissing, "%q", c.VHost))
	}
	if _, ok := e.users.get(c.User); !ok {
		return one(refuse(ErrUserMissing, "%q", c.User))
	}
	e.permissions = e.permissions.remove(key(c.VHost, c.User))
	e.accessChanged()
	return one(nil)
}
