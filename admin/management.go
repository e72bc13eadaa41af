package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/millrace/millrace/cluster/catalog"
)

// ManagementHandler serves the part of the ancestor's management API that the
// stream clients and their tools read. Names and shapes are the ancestor's;
// the figures are exact at once, where its are some seconds old.
func (s *Server) ManagementHandler() http.Handler {
	mux := http.NewServeMux()
	for _, r := range managementRoutes() {
		mux.Handle(r.pattern(), s.guard(r))
	}
	mux.Handle("/", s.guard(route{right: operator, handle: func(_ *Server, w http.ResponseWriter, req *http.Request) error {
		writeJSON(w, http.StatusNotFound, map[string]string{"error": "Object Not Found", "reason": "Not Found"})
		return nil
	}}))
	return http.NewCrossOriginProtection().Handler(slashNames(mux))
}

// managementRoutes: some clients ask for connections with a slash at the end.
func managementRoutes() []route {
	return []route{
		{"GET", "/api/connections", operator, here, (*Server).managementConnections},
		{"GET", "/api/connections/{$}", operator, here, (*Server).managementConnections},
		{"GET", "/api/connections/{name}", operator, here, (*Server).managementConnection},
		{"DELETE", "/api/connections/{name}", administrator, here, (*Server).closeConnection},
		{"PUT", "/api/vhosts/{vhost}", administrator, here, (*Server).managementPutVHost},
		{"DELETE", "/api/vhosts/{vhost}", administrator, here, (*Server).managementDeleteVHost},
		{"PUT", "/api/users/{user}", administrator, here, (*Server).managementPutUser},
		{"DELETE", "/api/users/{user}", administrator, here, (*Server).deleteUser},
		{"PUT", "/api/permissions/{vhost}/{user}", administrator, here, (*Server).managementPutPermission},
		{"DELETE", "/api/permissions/{vhost}/{user}", administrator, here, (*Server).clearPermission},
	}
}

// A managementConnection has exactly the fields that clients read, and some
// that people do.
type managementConnection struct {
	Name             string            `json:"name"`
	Node             string            `json:"node"`
	User             string            `json:"user"`
	VHost            string            `json:"vhost"`
	Protocol         string            `json:"protocol"`
	State            string            `json:"state"`
	ConnectedAt      int64             `json:"connected_at"` // ms
	ClientProperties map[string]string `json:"client_properties"`
}

// asManagement gives every entry a connection_name: the .NET and Python
// clients fail on a list with one entry that lacks it.
func asManagement(c Connection) managementConnection {
	properties := map[string]string{"connection_name": ""}
	for k, v := range c.Properties {
		properties[k] = v
	}
	return managementConnection{
		Name: c.Name, Node: c.Node, User: c.User, VHost: c.VHost, Protocol: "stream", State: "running",
		ConnectedAt: c.Connected.UnixMilli(), ClientProperties: properties,
	}
}

func (s *Server) managementConnections(w http.ResponseWriter, req *http.Request) error {
	all, err := s.connections(req)
	if err != nil {
		return err
	}
	list := []managementConnection{}
	for _, c := range all.Items {
		list = append(list, asManagement(c))
	}
	writeJSON(w, http.StatusOK, list)
	return nil
}

func (s *Server) managementConnection(w http.ResponseWriter, req *http.Request) error {
	all, err := s.connections(req)
	if err != nil {
		return err
	}
	for _, c := range all.Items {
		if c.Name == pathName(req, "name") {
			writeJSON(w, http.StatusOK, asManagement(c))
			return nil
		}
	}
	return fmt.Errorf("%w: %q", errNoConnection, pathName(req, "name"))
}

// managementPutVHost creates a virtual host; one that is there is fine, as
// the ancestor has it.
func (s *Server) managementPutVHost(w http.ResponseWriter, req *http.Request) error {
	switch err := s.metadata.CreateVHost(req.Context(), caller(req), pathName(req, "vhost")); {
	case errors.Is(err, catalog.ErrVHostExists):
		w.WriteHeader(http.StatusNoContent)
	case err != nil:
		return err
	default:
		w.WriteHeader(http.StatusCreated)
	}
	return nil
}

func (s *Server) managementDeleteVHost(w http.ResponseWriter, req *http.Request) error {
	if err := s.metadata.DeleteVHost(req.Context(), pathName(req, "vhost")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// managementUser is what tools send of a user. Tags are a list, or words with
// commas between them; those that mean nothing here are left out.
type managementUser struct {
	Password  string          `json:"password"`
	Hash      string          `json:"password_hash"`
	Algorithm string          `json:"hashing_algorithm"`
	Tags      json.RawMessage `json:"tags"`
}

// managementPutUser makes a user, or gives one that is there this password and
// these tags.
func (s *Server) managementPutUser(w http.ResponseWriter, req *http.Request) error {
	var body managementUser
	if err := readLoosely(w, req, &body); err != nil {
		return err
	}
	name, tags := pathName(req, "user"), knownTags(body.Tags)
	secret := Secret{Password: body.Password, Hash: body.Hash, Algorithm: body.Algorithm}
	switch err := s.metadata.CreateUser(req.Context(), name, secret, tags); {
	case err == nil:
		w.WriteHeader(http.StatusCreated)
		return nil
	case !errors.Is(err, catalog.ErrUserExists):
		return err
	}
	if err := s.keepsAdministrator(name, tags); err != nil {
		return err
	}
	if err := s.metadata.SetPassword(req.Context(), name, secret); err != nil {
		return err
	}
	if err := s.metadata.SetTags(req.Context(), name, tags); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func knownTags(text json.RawMessage) []string {
	var given []string
	var words string
	if json.Unmarshal(text, &given) != nil && json.Unmarshal(text, &words) == nil {
		given = strings.Split(words, ",")
	}
	known := []string{}
	for _, tag := range given {
		if tag = strings.TrimSpace(tag); slices.Contains(Tags, tag) {
			known = append(known, tag)
		}
	}
	return known
}

func (s *Server) managementPutPermission(w http.ResponseWriter, req *http.Request) error {
	var body Patterns
	if err := readLoosely(w, req, &body); err != nil {
		return err
	}
	err := s.metadata.SetPermission(req.Context(), Permission{
		User: pathName(req, "user"), VHost: pathName(req, "vhost"), Configure: body.Configure, Write: body.Write, Read: body.Read,
	})
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// readLoosely reads a body of which tools may send more than is read.
func readLoosely(w http.ResponseWriter, req *http.Request, into any) error {
	if err := json.NewDecoder(http.MaxBytesReader(w, req.Body, bodyMax)).Decode(into); err != nil {
		return fmt.Errorf("%w: %w", errBadBody, err)
	}
	return nil
}
