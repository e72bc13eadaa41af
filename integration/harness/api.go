package harness

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// Call asks the node's HTTP API as guest, with a JSON body unless it is nil, and
// decodes the answer of a success into into, unless that is nil.
func (n *Node) Call(method, path string, body, into any) error {
	var in io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		in = bytes.NewReader(text)
	}
	req, err := http.NewRequest(method, n.HTTP+path, in)
	if err != nil {
		return err
	}
	req.SetBasicAuth("guest", "guest")
	res, err := (&http.Client{Timeout: readyWithin}).Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if res.StatusCode >= 300 {
		return fmt.Errorf("%s %s: status %d: %s", method, path, res.StatusCode, text)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(text, into)
}

// Metric returns the value of a series, by its name with labels, from /metrics
// or /metrics/streams.
func (n *Node) Metric(path, series string) (float64, error) {
	text, err := n.Get(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("%s has no series %s", path, series)
}
