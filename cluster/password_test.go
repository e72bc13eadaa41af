package cluster

import (
	"context"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/cluster/catalog"
)

func TestHashPassword(t *testing.T) {
	text := HashPassword([]byte("secret"))
	if !strings.HasPrefix(text, "$argon2id$v=19$m=19456,t=2,p=1$") || strings.Contains(text, "secret") {
		t.Errorf("hash %s", text)
	}
	if again := HashPassword([]byte("secret")); again == text {
		t.Error("two hashes share their salt")
	}
	h, err := parseHash(text)
	if err != nil {
		t.Fatal(err)
	}
	for password, want := range map[string]bool{"secret": true, "Secret": false, "": false, "secret\x00": false} {
		if h.proves([]byte(password)) != want {
			t.Errorf("%q proves it: %v", password, !want)
		}
	}
}

// Vectors of argon2's own text form and of the ancestor's.
func TestParseHash_readsWhatOthersWrote(t *testing.T) {
	salt := []byte{1, 2, 3, 4}
	sum := sha512.Sum512(append(append([]byte{}, salt...), "pass"...))
	sha, err := ImportHash("rabbit_password_hashing_sha512", base64.StdEncoding.EncodeToString(append(salt, sum[:]...)))
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct{ text, password string }{
		// argon2 -id -t 2 -m 16 (64 MiB) -p 1, password "password", salt "somesalt"
		{"$argon2id$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc", "password"},
		{guestHash, "guest"},
		{GuestHash, "guest"},
		{sha, "pass"},
	} {
		h, err := parseHash(row.text)
		if err != nil {
			t.Errorf("%s: %v", row.text, err)
			continue
		}
		if !h.proves([]byte(row.password)) || h.proves([]byte(row.password+"x")) {
			t.Errorf("%s is not proven by %q", row.text, row.password)
		}
	}
}

func TestParseHash_refuses(t *testing.T) {
	good := "$argon2id$v=19$m=19456,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc"
	replace := func(old, new string) string { return strings.Replace(good, old, new, 1) }
	for name, text := range map[string]string{
		"plain text": "secret", "empty form": "$", "another form": "$2b$12$x", "argon2i": replace("argon2id", "argon2i"),
		"version": replace("v=19", "v=16"), "memory": replace("m=19456", "m=999999999"), "no memory": replace("m=19456", "m=1"),
		"passes": replace("t=2", "t=1000"), "no pass": replace("t=2", "t=0"), "lanes": replace("p=1", "p=200"), "no lane": replace("p=1", "p=0"),
		"salt": replace("c29tZXNhbHQ", "!"), "short salt": replace("c29tZXNhbHQ", "c28"), "no sum": good[:strings.LastIndex(good, "$")+1],
		"short SHA": "$rabbit-sha256$AAAA", "SHA of the other size": strings.Replace(guestHash, "256", "512", 1), "no base64": "$rabbit-sha256$!",
	} {
		if err := CheckHash(text); !errors.Is(err, ErrBadHash) {
			t.Errorf("%s: %v", name, err)
		} else if strings.Contains(err.Error(), "c29t") {
			t.Errorf("%s: the error holds the hash", name)
		}
	}
	if _, err := ImportHash("rabbit_password_hashing_md5", "AAAA"); !errors.Is(err, ErrBadHash) {
		t.Errorf("MD5: %v", err)
	}
}

func TestAuthenticate(t *testing.T) {
	c := open(t, t.TempDir(), newReplicas(newDisk(), 1))
	ctx := within(t)
	if err := errors.Join(
		c.PutUser(ctx, catalog.User{Name: "ada", Hash: HashPassword([]byte("one"))}),
		c.PutUser(ctx, catalog.User{Name: "locked", Hash: ""}),
	); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		user, password string
		want           error
	}{
		{"guest", "guest", nil}, {"ada", "one", nil}, {"ada", "one", nil},
		{"guest", "Guest", ErrCredentials}, {"ada", "", ErrCredentials}, {"ada", "guest", ErrCredentials},
		{"nobody", "guest", ErrCredentials}, {"", "", ErrCredentials}, {"locked", "", ErrCredentials},
	} {
		if err := c.Authenticate(ctx, row.user, []byte(row.password)); !errors.Is(err, row.want) {
			t.Errorf("%s with %q: %v", row.user, row.password, err)
		}
	}
	// A changed password ends what was proven by the old one.
	if err := c.PutUser(ctx, catalog.User{Name: "ada", Hash: HashPassword([]byte("two"))}); err != nil {
		t.Fatal(err)
	}
	if err := c.Authenticate(ctx, "ada", []byte("one")); !errors.Is(err, ErrCredentials) {
		t.Errorf("the old password: %v", err)
	}
	if err := c.Authenticate(ctx, "ada", []byte("two")); err != nil {
		t.Errorf("the new password: %v", err)
	}
	if err := c.DeleteUser(ctx, "ada"); err != nil {
		t.Fatal(err)
	}
	if err := c.Authenticate(ctx, "ada", []byte("two")); !errors.Is(err, ErrCredentials) {
		t.Errorf("a deleted user: %v", err)
	}
}

// A thousand logins with the same password cost one proof for each core at
// most, and a remembered one costs none until its time is over.
func TestProver_remembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProver()
		ctx := context.Background()
		if err := p.prove(ctx, "u", []byte("guest"), guestHash); err != nil {
			t.Fatal(err)
		}
		for range cap(p.running) {
			p.running <- struct{}{} // no proof can run now
		}
		short, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if err := p.prove(short, "u", []byte("guest"), guestHash); err != nil {
			t.Errorf("a proven credential: %v", err)
		}
		for name, try := range map[string]func() error{
			"another user":     func() error { return p.prove(short, "v", []byte("guest"), guestHash) },
			"another password": func() error { return p.prove(short, "u", []byte("guest2"), guestHash) },
			"another hash":     func() error { return p.prove(short, "u", []byte("guest"), "$rabbit-sha256$x") },
			"split elsewhere":  func() error { return p.prove(short, "ug", []byte("uest"), guestHash) },
		} {
			if err := try(); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s was not proven anew: %v", name, err)
			}
		}
		time.Sleep(provenFor) // virtual
		if err := p.prove(short, "u", []byte("guest"), guestHash); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after its time: %v", err)
		}
	})
}

func TestProver_isBounded(t *testing.T) {
	p := newProver()
	for i := range provenMax + 10 {
		p.remember(p.name(fmt.Sprint(i), nil, ""))
		p.remember(p.name(fmt.Sprint(i), nil, "")) // once more is the same
	}
	if len(p.proven) != provenMax || len(p.oldest) != provenMax {
		t.Errorf("%d remembered, %d in order", len(p.proven), len(p.oldest))
	}
	if p.remembers(p.name("9", nil, "")) || !p.remembers(p.name("10", nil, "")) {
		t.Error("not the oldest were forgotten")
	}
}

func TestProver_oneProofForEachCore(t *testing.T) {
	p := newProver()
	var wg sync.WaitGroup
	for range 8 * cap(p.running) {
		wg.Go(func() {
			if err := p.prove(context.Background(), "u", []byte("guest"), guestHash); err != nil {
				t.Error(err)
			}
			if len(p.running) > cap(p.running) {
				t.Error("too many proofs at once")
			}
		})
	}
	wg.Wait()
	if len(p.running) != 0 || len(p.proven) != 1 {
		t.Errorf("%d places taken, %d proven", len(p.running), len(p.proven))
	}
}

// The memory of proofs is given back once, when there was none for a while.
func TestProver_givesMemoryBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProver()
		freed := 0
		p.free = func() { freed++ }
		prove := func(password string) {
			t.Helper()
			if err := p.prove(t.Context(), "guest", []byte(password), GuestHash); (err == nil) != (password == "guest") {
				t.Fatal(err)
			}
		}
		rest := func(d time.Duration, want int) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			if freed != want {
				t.Errorf("memory was given back %d times, not %d", freed, want)
			}
		}
		prove("guest")
		rest(proofRest-1, 0)
		prove("wrong")
		rest(proofRest-1, 0)
		prove("guest") // is remembered, and takes no memory
		rest(1, 1)
		rest(time.Hour, 1)
		prove("wrong")
		rest(proofRest, 2)
	})
}
