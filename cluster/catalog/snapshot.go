package catalog

import (
	"encoding/json"
	"fmt"
	"slices"
)

// snapshotVersion is the newest form of snapshots; it grows like Version.
const snapshotVersion = 1

// snapshot is a State in JSON, all lists in the order of their keys: equal
// states give equal bytes.
type snapshot struct {
	Format      int            `json:"format"`
	Version     uint64         `json:"version"`
	VHosts      []*VHost       `json:"vhosts"`
	Users       []*User        `json:"users"`
	Permissions []*Permission  `json:"permissions"`
	Nodes       []*Node        `json:"nodes"`
	Streams     []*Stream      `json:"streams"`
	Supers      []*SuperStream `json:"super-streams"`
	Groups      []*Group       `json:"groups"`
	Requests    []request      `json:"requests"` // oldest first
	GossipKey   []byte         `json:"gossip-key,omitempty"`
}

type request struct {
	ID     string `json:"id"`
	Result Result `json:"result"`
}

// Encode writes the state as JSON.
func (s *State) Encode() []byte {
	shot := snapshot{
		Format:      snapshotVersion,
		Version:     s.version,
		VHosts:      collect(s.vhosts),
		Users:       collect(s.users),
		Permissions: collect(s.permissions),
		Nodes:       collect(s.nodes),
		Streams:     collect(s.streams),
		Supers:      collect(s.supers),
		Groups:      collect(s.groups),
		Requests:    make([]request, 0, s.requests.order.len()),
		GossipKey:   s.gossipKey,
	}
	for _, id := range s.requests.order.all() {
		r, _ := s.requests.by.get(id)
		shot.Requests = append(shot.Requests, request{ID: id, Result: r.result})
	}
	b, err := json.Marshal(shot)
	if err != nil {
		panic(fmt.Sprintf("catalog: encode snapshot: %v", err))
	}
	return b
}

func collect[K interface{ ~string | ~uint64 }, V any](t tree[K, V]) []V {
	all := make([]V, 0, t.len())
	for _, v := range t.all() {
		all = append(all, v)
	}
	return all
}

// Restore reads what Encode wrote. Its errors are ErrMalformed and
// ErrNewerVersion.
func Restore(b []byte) (*State, error) {
	var head struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(b, &head); err != nil {
		return nil, fmt.Errorf("%w: snapshot: %v", ErrMalformed, err)
	}
	if head.Format > snapshotVersion {
		return nil, fmt.Errorf("%w: snapshot of version %d, this program knows up to %d: upgrade this node",
			ErrNewerVersion, head.Format, snapshotVersion)
	}
	var shot snapshot
	if err := strict(b, &shot); err != nil {
		return nil, fmt.Errorf("%w: snapshot: %v", ErrMalformed, err)
	}
	return shot.state()
}

func (shot *snapshot) state() (*State, error) {
	e := &edit{State: State{version: shot.Version, gossipKey: shot.GossipKey}}
	if n := len(shot.GossipKey); n != 0 && n != gossipKeyBytes {
		return nil, fmt.Errorf("%w: snapshot: a gossip key of %d bytes", ErrMalformed, n)
	}
	for _, v := range shot.VHosts {
		e.vhosts = e.vhosts.put(v.Name, v)
	}
	for _, u := range shot.Users {
		e.users = e.users.put(u.Name, u)
	}
	for _, p := range shot.Permissions {
		if r := p.compile(); r != nil {
			return nil, fmt.Errorf("%w: snapshot: permission of %q in %q: %v", ErrMalformed, p.User, p.VHost, r)
		}
		e.permissions = e.permissions.put(key(p.VHost, p.User), p)
	}
	for _, n := range shot.Nodes {
		e.nodes = e.nodes.put(n.ID, n)
	}
	for _, s := range shot.Streams {
		if _, twice := e.streams.get(s.Incarnation); twice || len(s.Replicas) == 0 {
			return nil, fmt.Errorf("%w: snapshot: stream %q of incarnation %s", ErrMalformed, s.Name, s.Incarnation)
		}
		e.putStream(s)
	}
	for _, p := range shot.Supers {
		e.supers = e.supers.put(key(p.VHost, p.Name), p)
	}
	for _, g := range shot.Groups {
		e.groups = e.groups.put(key(g.VHost, g.Stream, g.Name), g)
	}
	for _, r := range shot.Requests {
		e.requests = e.requests.remember(r.ID, r.Result)
	}
	return &e.State, nil
}

// Diff returns what is different in after, for who follows the changes and was
// given a snapshot instead.
func Diff(before, after *State) []Change {
	var changes []Change
	for old := range before.Streams() {
		if _, ok := after.Incarnation(old.Incarnation); !ok {
			changes = append(changes, Change{Kind: StreamChanged, Before: old})
		}
	}
	for s := range after.Streams() {
		old, ok := before.Incarnation(s.Incarnation)
		if !ok || !old.equal(s) {
			changes = append(changes, Change{Kind: StreamChanged, Before: old, Stream: s})
		}
	}
	for n := range before.Nodes() {
		if _, ok := after.Node(n.ID); !ok {
			changes = append(changes, Change{Kind: NodeChanged, Node: n.ID})
		}
	}
	for n := range after.Nodes() {
		if old, ok := before.Node(n.ID); !ok || *old != *n {
			changes = append(changes, Change{Kind: NodeChanged, Node: n.ID})
		}
	}
	changes = append(changes, diffGroups(before, after)...)
	// Access and super streams are few and looked up afresh: no comparison.
	return append(changes, Change{Kind: AccessChanged}, Change{Kind: SuperStreamChanged})
}

func diffGroups(before, after *State) []Change {
	var changes []Change
	for id, old := range before.groups.all() {
		if _, ok := after.groups.get(id); !ok {
			changes = append(changes, Change{Kind: GroupChanged, GroupBefore: old})
		}
	}
	for id, g := range after.groups.all() {
		old, ok := before.groups.get(id)
		if !ok || old.Partition != g.Partition || !slices.Equal(old.Members, g.Members) {
			changes = append(changes, Change{Kind: GroupChanged, GroupBefore: old, Group: g})
		}
	}
	return changes
}

func (s *Stream) equal(t *Stream) bool {
	return s.VHost == t.VHost && s.Name == t.Name && s.Incarnation == t.Incarnation &&
		s.Arguments == t.Arguments && s.Created == t.Created && s.Creator == t.Creator &&
		s.Epoch == t.Epoch && s.Leader == t.Leader && s.ConfigVersion == t.ConfigVersion &&
		s.Preferred == t.Preferred && s.Target == t.Target && slices.Equal(s.Replicas, t.Replicas) &&
		(s.Declared == nil) == (t.Declared == nil) && (s.Declared == nil || *s.Declared == *t.Declared)
}
