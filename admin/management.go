package admin

import (
	"errors"
	"fmt"
	"net/http"

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
