package node

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/cmd/millrace/config"
)

func TestHostNames_areTheNodesAndTheMachines(t *testing.T) {
	machine, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	short, _, _ := strings.Cut(machine, ".")
	c := config.Server()
	c.NodeName, c.HTTPAddr, c.ManagementAddr, c.NodeAdvertised = "n1", "http.example:7080", "management.example:15672", "node.example:7081"
	c.AdvertisedHost, c.AdvertisedTLSHost, c.HTTPHosts = "clients.example", "tls.example", []string{"proxy.example"}
	got := hostNames(c)
	for _, name := range []string{"n1", "http.example", "management.example", "node.example", "clients.example", "tls.example", "proxy.example", machine, short} {
		if !slices.Contains(got, name) {
			t.Errorf("%s is missing in %q", name, got)
		}
	}
}

// TestServeOperators_refusesOtherNames: a page whose name was made to lead to this
// machine is nobody, though it knows guest's password.
func TestServeOperators_refusesOtherNames(t *testing.T) {
	c := config.Dev()
	c.DataDir, c.HTTPHosts = filepath.Join(t.TempDir(), "dev"), []string{"proxy.example"}
	c.StreamAddr, c.HTTPAddr, c.ManagementAddr, c.NodeAddr = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	n, err := Start(ctx, c, "test", hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	defer n.Stop(ctx)
	for _, url := range []string{"http://" + n.addresses.HTTP + "/api/v1/status", "http://" + n.addresses.Management + "/api/connections"} {
		for host, want := range map[string]int{
			"": http.StatusOK, "localhost:1": http.StatusOK, "dev": http.StatusOK, "proxy.example:443": http.StatusOK,
			"rebound.example": http.StatusMisdirectedRequest, "rebound.example:7080": http.StatusMisdirectedRequest,
		} {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Host = host // none: the address's
			req.SetBasicAuth("guest", "guest")
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			var said admin.Failure
			decoded := json.NewDecoder(res.Body).Decode(&said)
			res.Body.Close()
			if res.StatusCode != want {
				t.Errorf("%s as %q answers %d, want %d", url, host, res.StatusCode, want)
			}
			if want != http.StatusOK && (decoded != nil || !strings.Contains(said.Try, "http.hosts")) {
				t.Errorf("%s as %q says %+v (%v), want it to name http.hosts", url, host, said, decoded)
			}
		}
	}
}
