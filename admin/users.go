package admin

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/cluster/catalog"
)

// Who may do what: virtual hosts, users and their permissions. Passwords come in
// and never go out, nor do their hashes.

// Secret is how a new user proves to be it: by a password, by one whose hash comes
// from elsewhere, or, with all empty, by a certificate alone.
type Secret struct {
	Password string `json:"password,omitempty"`
	// Hash is base64 of salt and sum, made by Algorithm:
	// rabbit_password_hashing_sha256 (the default) or rabbit_password_hashing_sha512.
	Hash      string `json:"password_hash,omitempty"`
	Algorithm string `json:"hashing_algorithm,omitempty"`
}

// NewUser is the body of a create.
type NewUser struct {
	Name string   `json:"name"`
	Tags []string `json:"tags"`
	Secret
}

// UserTags is the body of a change of tags.
type UserTags struct {
	Tags []string `json:"tags"`
}

// User is somebody who may log in.
type User struct {
	Name string   `json:"name"`
	Tags []string `json:"tags"`
	// Password: one is set; else a certificate alone lets him in.
	Password bool     `json:"password"`
	VHosts   []string `json:"vhosts"` // to which there are permissions
}

// Permission is what a user may do in a virtual host: regular expressions that are
// searched in names of streams and super streams. An empty one allows nothing.
type Permission struct {
	User      string `json:"user"`
	VHost     string `json:"vhost"`
	Configure string `json:"configure"`
	Write     string `json:"write"`
	Read      string `json:"read"`
}

// Patterns is the body of a change of permissions.
type Patterns struct {
	Configure string `json:"configure"`
	Write     string `json:"write"`
	Read      string `json:"read"`
}

// NewVHost is the body of a create.
type NewVHost struct {
	Name string `json:"name"`
}

// VHost is a name space for streams.
type VHost struct {
	Name         string    `json:"name"`
	Created      time.Time `json:"created"`
	Streams      int       `json:"streams"`
	SuperStreams int       `json:"super_streams"`
	Users        []string  `json:"users"` // with permissions in it
}

// Tags are what users may be tagged with. An administrator may do everything on
// the HTTP API, monitoring and management may look; policymaker is known so that
// users of RabbitMQ can be taken over, and allows nothing here.
var Tags = []string{administratorTag, "management", "monitoring", "policymaker"}

const administratorTag = "administrator"

func (s *Server) accessRoutes() []route {
	return []route{
		{"GET", "/api/v1/vhosts", operator, here, (*Server).listVHosts},
		{"POST", "/api/v1/vhosts", administrator, here, (*Server).createVHost},
		{"DELETE", "/api/v1/vhosts/{vhost}", administrator, here, (*Server).deleteVHost},
		{"GET", "/api/v1/users", operator, here, (*Server).listUsers},
		{"POST", "/api/v1/users", administrator, here, (*Server).createUser},
		{"DELETE", "/api/v1/users/{user}", administrator, here, (*Server).deleteUser},
		{"PUT", "/api/v1/users/{user}/password", administrator, here, (*Server).setPassword},
		{"PUT", "/api/v1/users/{user}/tags", administrator, here, (*Server).setTags},
		{"GET", "/api/v1/permissions", operator, here, (*Server).listPermissions},
		{"PUT", "/api/v1/permissions/{vhost}/{user}", administrator, here, (*Server).setPermission},
		{"DELETE", "/api/v1/permissions/{vhost}/{user}", administrator, here, (*Server).clearPermission},
	}
}

func (s *Server) listVHosts(w http.ResponseWriter, _ *http.Request) error {
	view := s.metadata.View()
	list := []VHost{}
	for v := range view.VHosts() {
		out := VHost{Name: v.Name, Created: time.UnixMilli(int64(v.Created)).UTC(), Users: []string{}}
		for range view.StreamsOf(v.Name) {
			out.Streams++
		}
		for range view.SuperStreamsOf(v.Name) {
			out.SuperStreams++
		}
		for p := range view.Permissions() {
			if p.VHost == v.Name {
				out.Users = append(out.Users, p.User)
			}
		}
		list = append(list, out)
	}
	writeJSON(w, http.StatusOK, list)
	return nil
}

func (s *Server) createVHost(w http.ResponseWriter, req *http.Request) error {
	var body NewVHost
	if err := readJSON(w, req, &body); err != nil {
		return err
	}
	if err := s.metadata.CreateVHost(req.Context(), caller(req), body.Name); err != nil {
		return err
	}
	s.log.Info("virtual host created", "vhost", body.Name, "by", caller(req))
	w.WriteHeader(http.StatusCreated)
	return nil
}

func (s *Server) deleteVHost(w http.ResponseWriter, req *http.Request) error {
	name := pathName(req, "vhost")
	if err := s.metadata.DeleteVHost(req.Context(), name); err != nil {
		return err
	}
	s.log.Info("virtual host deleted with its streams", "vhost", name, "by", caller(req))
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) listUsers(w http.ResponseWriter, _ *http.Request) error {
	view := s.metadata.View()
	list := []User{}
	for u := range view.Users() {
		out := User{Name: u.Name, Tags: append([]string{}, u.Tags...), Password: u.Hash != "", VHosts: []string{}}
		for p := range view.Permissions() {
			if p.User == u.Name {
				out.VHosts = append(out.VHosts, p.VHost)
			}
		}
		list = append(list, out)
	}
	writeJSON(w, http.StatusOK, list)
	return nil
}

func (s *Server) createUser(w http.ResponseWriter, req *http.Request) error {
	var body NewUser
	if err := readJSON(w, req, &body); err != nil {
		return err
	}
	if err := checkTags(body.Tags); err != nil {
		return err
	}
	if err := s.metadata.CreateUser(req.Context(), body.Name, body.Secret, body.Tags); err != nil {
		return err
	}
	s.log.Info("user created", "user", body.Name, "tags", strings.Join(body.Tags, ","), "by", caller(req))
	w.WriteHeader(http.StatusCreated)
	return nil
}

func (s *Server) deleteUser(w http.ResponseWriter, req *http.Request) error {
	name := pathName(req, "user")
	if err := s.keepsAdministrator(name, nil); err != nil {
		return err
	}
	if err := s.metadata.DeleteUser(req.Context(), name); err != nil {
		return err
	}
	s.log.Info("user deleted", "user", name, "by", caller(req))
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) setPassword(w http.ResponseWriter, req *http.Request) error {
	var body Secret
	if err := readJSON(w, req, &body); err != nil {
		return err
	}
	name := pathName(req, "user")
	if err := s.metadata.SetPassword(req.Context(), name, body); err != nil {
		return err
	}
	s.log.Info("password changed", "user", name, "by", caller(req))
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) setTags(w http.ResponseWriter, req *http.Request) error {
	var body UserTags
	if err := readJSON(w, req, &body); err != nil {
		return err
	}
	if err := checkTags(body.Tags); err != nil {
		return err
	}
	name := pathName(req, "user")
	if err := s.keepsAdministrator(name, body.Tags); err != nil {
		return err
	}
	if err := s.metadata.SetTags(req.Context(), name, body.Tags); err != nil {
		return err
	}
	s.log.Info("tags changed", "user", name, "tags", strings.Join(body.Tags, ","), "by", caller(req))
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func checkTags(tags []string) error {
	for _, tag := range tags {
		if !slices.Contains(Tags, tag) {
			return fmt.Errorf("%w: tag %q is none of %s", catalog.ErrBadArgument, tag, strings.Join(Tags, ", "))
		}
	}
	return nil
}

// keepsAdministrator refuses to leave a cluster without anybody who could change
// it, by a user that loses its tags but these, or goes.
func (s *Server) keepsAdministrator(name string, tags []string) error {
	view := s.metadata.View()
	user, ok := view.User(name)
	if !ok || !slices.Contains(user.Tags, administratorTag) || slices.Contains(tags, administratorTag) {
		return nil
	}
	for u := range view.Users() {
		if u.Name != name && slices.Contains(u.Tags, administratorTag) {
			return nil
		}
	}
	return fmt.Errorf("%w: %q is the last administrator; nobody could change anything any more", catalog.ErrUnsafe, name)
}

// listPermissions lists those of one virtual host (?vhost=), of one user (?user=),
// or all.
func (s *Server) listPermissions(w http.ResponseWriter, req *http.Request) error {
	view, query := s.metadata.View(), req.URL.Query()
	if query.Has("vhost") {
		if _, ok := view.VHost(query.Get("vhost")); !ok {
			return fmt.Errorf("%w: %q", catalog.ErrVHostMissing, query.Get("vhost"))
		}
	}
	if query.Has("user") {
		if _, ok := view.User(query.Get("user")); !ok {
			return fmt.Errorf("%w: %q", catalog.ErrUserMissing, query.Get("user"))
		}
	}
	list := []Permission{}
	for p := range view.Permissions() {
		if query.Has("vhost") && p.VHost != query.Get("vhost") || query.Has("user") && p.User != query.Get("user") {
			continue
		}
		list = append(list, Permission{User: p.User, VHost: p.VHost, Configure: p.Configure, Write: p.Write, Read: p.Read})
	}
	writeJSON(w, http.StatusOK, list)
	return nil
}

func (s *Server) setPermission(w http.ResponseWriter, req *http.Request) error {
	var body Patterns
	if err := readJSON(w, req, &body); err != nil {
		return err
	}
	vhost, user := pathName(req, "vhost"), pathName(req, "user")
	err := s.metadata.SetPermission(req.Context(), Permission{User: user, VHost: vhost, Configure: body.Configure, Write: body.Write, Read: body.Read})
	if err != nil {
		return err
	}
	s.log.Info("permission set", "user", user, "vhost", vhost, "configure", body.Configure, "write", body.Write, "read", body.Read, "by", caller(req))
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) clearPermission(w http.ResponseWriter, req *http.Request) error {
	vhost, user := pathName(req, "vhost"), pathName(req, "user")
	if err := s.metadata.ClearPermission(req.Context(), vhost, user); err != nil {
		return err
	}
	s.log.Info("permission cleared", "user", user, "vhost", vhost, "by", caller(req))
	w.WriteHeader(http.StatusNoContent)
	return nil
}
