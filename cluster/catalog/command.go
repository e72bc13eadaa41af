package catalog

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// Version is the newest version of commands that this program knows. It grows
// with each change that an older program could not follow, be it a new command,
// a new field or a new meaning. A command says the version that it came with
// (enterSince), so that nodes of two versions go on together until a new one is
// used; then the older stop.
const Version = 2

// Command is one change of the catalog, with what only its proposer may know.
type Command struct {
	// Request is drawn anew by the proposer for each intent and is the same in
	// each repetition of it. Empty: the answer is not remembered, which is
	// right for commands that name the state they build on.
	Request string
	// At is the proposer's clock; nobody else's is ever read.
	At chunk.Timestamp
	// Body is what to do.
	Body Body
}

// Body is one kind of command: CreateStreams, GrantEpochs and so on.
type Body interface {
	// kind is the type's name in JSON.
	kind() string
	// apply changes the state that is being edited and returns the answer.
	apply(e *edit) []Outcome
}

// Outcome is the answer to one part of a command: to one stream of many.
type Outcome struct {
	Refusal     *Refusal          `json:"refusal,omitempty"` // nil: it was done
	Incarnation chunk.Incarnation `json:"incarnation,omitzero"`
	Epoch       chunk.Epoch       `json:"epoch,omitempty"`
	// Registration is the replica's new one.
	Registration protocol.Registration `json:"registration,omitempty"`
}

// Err returns the refusal as an error.
func (o Outcome) Err() error {
	if o.Refusal == nil {
		return nil
	}
	return o.Refusal
}

// Result is the answer to a command: one outcome for each of its parts, in
// their order; commands without parts have one.
type Result struct {
	Outcomes []Outcome `json:"outcomes"`
}

// Err returns the first refusal.
func (r Result) Err() error {
	for _, o := range r.Outcomes {
		if err := o.Err(); err != nil {
			return err
		}
	}
	return nil
}

// envelope is a command in JSON.
type envelope struct {
	Version int             `json:"v"`
	Kind    string          `json:"type"`
	Request string          `json:"id,omitempty"`
	At      chunk.Timestamp `json:"at"`
	Body    json.RawMessage `json:"body"`
}

// bodies are the kinds of commands.
var bodies = map[string]entry{}

// entry is one kind of command.
type entry struct {
	empty func() Body
	since int // the version that it came with
}

// enter registers a kind of command that has always been there; T is its struct.
func enter[T any, P interface {
	*T
	Body
}]() {
	enterSince[T, P](1)
}

func enterSince[T any, P interface {
	*T
	Body
}](version int) {
	name := P(new(T)).kind()
	if _, twice := bodies[name]; twice {
		panic("catalog: two commands of type " + name)
	}
	bodies[name] = entry{func() Body { return P(new(T)) }, version}
}

func init() { // the registration table
	enter[CreateStreams]()
	enter[DeleteStreams]()
	enter[SetRetention]()
	enter[GrantEpochs]()
	enter[AssignLeaders]()
	enter[RegisterReplicas]()
	enter[ClearReplicas]()
	enter[AddReplicas]()
	enter[ChangeVoters]()
	enter[RetireReplicas]()
	enter[RemoveReplicas]()
	enter[TransferLeaders]()
	enter[PutNode]()
	enter[MarkNode]()
	enter[RemoveNode]()
	enter[GiveUpNodes]()
	enter[CreateVHost]()
	enter[DeleteVHost]()
	enter[PutUser]()
	enter[ChangeUser]()
	enter[DeleteUser]()
	enter[SetPermission]()
	enter[ClearPermission]()
	enter[CreateSuperStream]()
	enter[DeleteSuperStream]()
	enter[JoinGroup]()
	enter[LeaveGroups]()
	enter[StoppedMember]()
	enter[ActivateGroup]()
	enter[ReachMembers]()
	enter[SetGossipKey]()
	enterSince[ChangeGroups](2)
}

// Encode writes the command as JSON.
func (c Command) Encode() []byte {
	body, err := json.Marshal(c.Body)
	if err != nil {
		panic(fmt.Sprintf("catalog: encode %s: %v", c.Body.kind(), err))
	}
	b, err := json.Marshal(envelope{Version: bodies[c.Body.kind()].since, Kind: c.Body.kind(), Request: c.Request, At: c.At, Body: body})
	if err != nil {
		panic(fmt.Sprintf("catalog: encode %s: %v", c.Body.kind(), err))
	}
	return b
}

// Decode reads a command. Its errors are ErrMalformed, ErrNewerVersion and
// ErrUnknownCommand; on each of them the node must stop.
func Decode(b []byte) (Command, error) {
	var e envelope
	if err := json.Unmarshal(b, &e); err != nil {
		return Command{}, fmt.Errorf("%w: command: %v", ErrMalformed, err)
	}
	if e.Version > Version {
		return Command{}, fmt.Errorf("%w: command %q is of version %d, this program knows up to %d: upgrade this node",
			ErrNewerVersion, e.Kind, e.Version, Version)
	}
	if e.Version < 1 {
		return Command{}, fmt.Errorf("%w: command %q is of version %d", ErrMalformed, e.Kind, e.Version)
	}
	kind, ok := bodies[e.Kind]
	if !ok {
		return Command{}, fmt.Errorf("%w: %q of version %d: upgrade this node", ErrUnknownCommand, e.Kind, e.Version)
	}
	body := kind.empty()
	if err := strict(e.Body, body); err != nil {
		return Command{}, fmt.Errorf("%w: command %q: %v", ErrMalformed, e.Kind, err)
	}
	return Command{Request: e.Request, At: e.At, Body: body}, nil
}

// strict reads JSON that must have no field but those of v, and nothing behind
// it. A field that this program does not know may carry a meaning that it would
// miss.
func strict(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("bytes behind the value")
	}
	return nil
}
