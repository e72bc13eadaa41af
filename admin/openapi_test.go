package admin

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// TestOpenAPI_describesEveryRoute compares the description with the routes, in
// both directions. The page's own files are no part of the API.
func TestOpenAPI_describesEveryRoute(t *testing.T) {
	var description struct {
		Paths map[string]map[string]any `yaml:"paths"`
	}
	if err := yaml.Unmarshal(openAPI, &description); err != nil {
		t.Fatal(err)
	}
	var described, served []string
	for path, methods := range description.Paths {
		for method := range methods {
			if method != "parameters" {
				described = append(described, strings.ToUpper(method)+" "+path)
			}
		}
	}
	for _, r := range newHouse(t).server().routes() {
		if r.path != "/{$}" && !strings.HasPrefix(r.path, "/page/") {
			served = append(served, strings.ReplaceAll(r.pattern(), "...}", "}"))
		}
	}
	for _, s := range served {
		if !slices.Contains(described, s) {
			t.Errorf("%s is served but openapi.yaml does not describe it", s)
		}
	}
	for _, d := range described {
		if !slices.Contains(served, d) {
			t.Errorf("openapi.yaml describes %s, which is not served", d)
		}
	}
	if len(served) < 10 {
		t.Errorf("only %d routes were compared", len(served))
	}
}

// TestOpenAPI_publicRoutesSaySo: what needs no credentials is marked so.
func TestOpenAPI_publicRoutesSaySo(t *testing.T) {
	var description struct {
		Paths map[string]map[string]yaml.Node `yaml:"paths"`
	}
	if err := yaml.Unmarshal(openAPI, &description); err != nil {
		t.Fatal(err)
	}
	for _, r := range newHouse(t).server().routes() {
		node, ok := description.Paths[strings.ReplaceAll(r.path, "...}", "}")][strings.ToLower(r.method)]
		if !ok {
			continue
		}
		var operation struct {
			Security []any `yaml:"security"`
		}
		if err := node.Decode(&operation); err != nil {
			t.Fatal(err)
		}
		if open := operation.Security != nil; open != (r.right == anyone) {
			t.Errorf("%s: open to anyone is %v, openapi.yaml says %v", r.pattern(), r.right == anyone, open)
		}
	}
}

// TestOpenAPI_describesEveryField compares the schemas with the values that the
// API answers with or takes, in both directions.
func TestOpenAPI_describesEveryField(t *testing.T) {
	type schema struct {
		Ref        string               `yaml:"$ref"`
		Properties map[string]yaml.Node `yaml:"properties"`
	}
	var description struct {
		Components struct {
			Schemas map[string]schema `yaml:"schemas"`
		} `yaml:"components"`
	}
	if err := yaml.Unmarshal(openAPI, &description); err != nil {
		t.Fatal(err)
	}
	schemas := description.Components.Schemas
	var compare func(name string, of reflect.Type, s schema)
	compare = func(name string, of reflect.Type, s schema) {
		fields := map[string]reflect.Type{}
		for _, f := range reflect.VisibleFields(of) {
			if tag, _, _ := strings.Cut(f.Tag.Get("json"), ","); tag != "" {
				fields[tag] = f.Type
			}
		}
		for field, kind := range fields {
			node, ok := s.Properties[field]
			if !ok {
				t.Errorf("%s.%s is not in openapi.yaml", name, field)
				continue
			}
			var inner schema
			if err := node.Decode(&inner); err != nil {
				t.Fatal(err)
			}
			if inner.Ref != "" {
				inner = schemas[strings.TrimPrefix(inner.Ref, "#/components/schemas/")]
			}
			if kind.Kind() == reflect.Struct && kind != reflect.TypeFor[time.Time]() {
				compare(name+"."+field, kind, inner)
			}
		}
		for field := range s.Properties {
			if _, ok := fields[field]; !ok {
				t.Errorf("openapi.yaml has %s.%s, which nobody fills", name, field)
			}
		}
	}
	values := []any{
		Status{}, Stream{}, Bytes{}, Segment{}, Chunk{}, Verdict{}, Connection{}, Publisher{}, Consumer{}, CreateStream{}, LeaderRequest{}, Failure{},
		Reference{}, SetOffset{}, CopyOffset{}, MovedOffset{}, ExpireOffsets{}, Retention{}, Disk{}, Certificate{}, Cluster{}, Member{}, Joining{}, StopCheck{}, Replica{}, Balance{}, Move{}, Group{}, GroupMember{}, ActivateGroup{},
	}
	values = append(values, VHost{}, NewVHost{}, User{}, NewUser{}, Secret{}, UserTags{}, Permission{}, Patterns{}) // access
	for _, v := range values {
		of := reflect.TypeOf(v)
		compare(of.Name(), of, schemas[of.Name()])
	}
}
