package broker_test

import (
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/broker"
	"github.com/millrace/millrace/wire"
)

func TestMetadata_answersEachName(t *testing.T) {
	h := serve(t, func(c *broker.Config) { c.AdvertisedHost, c.AdvertisedPort = "broker.example", 1234 })
	h.addUser(t, "some", "pw")
	h.permit(t, "some", "/", "", "^w", "^r")
	p := h.open(t)
	for _, name := range []string{"w", "r", "x"} {
		p.create(name)
	}
	ask := func(p *peer, names ...string) (brokers []wire.Broker, codes map[string]wire.ResponseCode) {
		t.Helper()
		answer := p.ask(&wire.Metadata{Correlation: p.next(), Streams: wire.StringsOf(names...)}).(*wire.MetadataResponse)
		codes = map[string]wire.ResponseCode{}
		for _, s := range answer.Streams.Slice() {
			if _, twice := codes[s.Stream]; twice {
				t.Fatalf("%q is answered twice", s.Stream)
			}
			codes[s.Stream] = s.Code
			if leader := s.Leader; (s.Code == wire.CodeOK) != (leader == 0) || len(s.Replicas) != 0 {
				t.Fatalf("%+v", s)
			}
		}
		return answer.Brokers.Slice(), codes
	}
	brokers, codes := ask(p, "w", "none", "w", "r")
	if len(codes) != 3 || codes["w"] != wire.CodeOK || codes["none"] != wire.CodeStreamDoesNotExist {
		t.Fatalf("codes %v", codes)
	}
	if len(brokers) != 1 || brokers[0] != (wire.Broker{Reference: 0, Host: "broker.example", Port: 1234}) {
		t.Fatalf("brokers %+v", brokers)
	}
	some := h.openAs(t, "some", "pw", &wire.Tune{})
	if _, codes := ask(some, "w", "r", "x", "nothing"); codes["w"] != wire.CodeOK || codes["r"] != wire.CodeOK ||
		codes["x"] != wire.CodeAccessRefused || codes["nothing"] != wire.CodeAccessRefused {
		t.Fatalf("codes %v", codes)
	}
	if brokers, codes := ask(p); len(brokers) != 0 || len(codes) != 0 {
		t.Fatalf("asked for nothing, got %v %v", brokers, codes)
	}
}

func TestOpen_advertisesWhatMetadataSays(t *testing.T) {
	h := serve(t, nil)
	p := h.dial(t)
	p.advance(4, "guest", "guest", &wire.Tune{})
	opened := p.ask(&wire.Open{Correlation: 1, VirtualHost: "/"}).(*wire.OpenResponse)
	p.create("s")
	at := p.ask(&wire.Metadata{Correlation: 1, Streams: wire.StringsOf("s")}).(*wire.MetadataResponse).Brokers.Slice()[0]
	got := opened.Properties.Map()
	if opened.Properties.Len() != 2 || got["advertised_host"] != at.Host || got["advertised_port"] != portOf(h.addr) || at.Host != "localhost" {
		t.Fatalf("open says %v, metadata %+v, the socket is %s", got, at, h.addr)
	}
}

func portOf(addr string) string { return addr[strings.LastIndex(addr, ":")+1:] }

func TestPeerProperties_tellAVersionClientsUnderstand(t *testing.T) {
	h := serve(t, nil)
	p := h.dial(t)
	answer := p.ask(&wire.PeerProperties{Correlation: 1}).(*wire.PeerPropertiesResponse)
	got := answer.Properties.Map()
	if got["version"] != "4.2.0" || got["product"] != "Millrace" || len(got) != 6 {
		t.Fatalf("%v", got)
	}
}

func TestMetadata_namesOtherNodes(t *testing.T) {
	h := serve(t, nil)
	p := h.open(t)
	p.create("s")
	h.addReplica(t, "s", "n2", "two.example:1234")
	ask := func() (wire.StreamMetadata, []wire.Broker) {
		t.Helper()
		answer := p.ask(&wire.Metadata{Correlation: 1, Streams: wire.StringsOf("s")}).(*wire.MetadataResponse)
		return answer.Streams.Slice()[0], answer.Brokers.Slice()
	}
	if stream, brokers := ask(); len(brokers) != 1 || len(stream.Replicas) != 0 {
		t.Fatalf("a replica that is still filled is offered: %+v of %+v", stream, brokers)
	}
	h.promote(t, "s", "n2")
	stream, brokers := ask()
	if len(brokers) != 2 || len(stream.Replicas) != 1 || brokers[stream.Replicas[0]].Host != "two.example" ||
		brokers[stream.Replicas[0]].Port != 1234 || brokers[stream.Leader].Host != "localhost" {
		t.Fatalf("%+v of %+v", stream, brokers)
	}
	h.goes("n2")
	if stream, brokers := ask(); len(brokers) != 1 || len(stream.Replicas) != 0 || stream.Leader != 0 {
		t.Fatalf("a node that is gone is offered: %+v of %+v", stream, brokers)
	}
	h.comes("n2")
	if stream, _ := ask(); len(stream.Replicas) != 1 {
		t.Fatalf("a node that is back is not offered: %+v", stream)
	}
	h.drain(t, "n2")
	if stream, brokers := ask(); len(brokers) != 1 || len(stream.Replicas) != 0 || stream.Leader != 0 {
		t.Fatalf("a drained node is offered: %+v of %+v", stream, brokers)
	}
}

// TestMetadata_waitsForAnotherLeader: an answer that would name a leader that is
// gone is held while there can be another, and the leader is named all the same
// if none comes.
func TestMetadata_waitsForAnotherLeader(t *testing.T) {
	metadata := &wire.Metadata{Correlation: 1, Streams: wire.StringsOf("s")}
	leader := func(p *peer, answer wire.Command) string {
		t.Helper()
		m := answer.(*wire.MetadataResponse)
		s := m.Streams.Slice()[0]
		if s.Code != wire.CodeOK || s.Leader == wire.NoLeader {
			t.Fatalf("%+v", s)
		}
		return m.Brokers.Slice()[s.Leader].Host
	}
	start := func(wait time.Duration) (*house, *peer) {
		h := serve(t, func(c *broker.Config) { c.MetadataWait = wait })
		p := h.open(t)
		p.create("s")
		for node, addr := range map[string]string{"n2": "two.example:1234", "n3": "three.example:1234"} {
			h.addReplica(t, "s", node, addr)
			h.promote(t, "s", node)
		}
		h.depose(t, "s")
		h.electOther(t, "s", "n2")
		return h, p
	}
	h, p := start(patience)
	if got := leader(p, p.ask(metadata)); got != "two.example" {
		t.Fatalf("the leader is at %s", got)
	}
	h.goes("n2")
	p.send(metadata)
	p.wantSilence()
	h.depose(t, "s")
	p.wantSilence()
	h.electOther(t, "s", "n3")
	if got := leader(p, p.read()); got != "three.example" {
		t.Fatalf("the leader is at %s", got)
	}
	h.goes("n3") // one of three can elect nobody
	if got := leader(p, p.ask(metadata)); got != "three.example" {
		t.Fatalf("the leader is at %s", got)
	}
	h, p = start(20 * time.Millisecond)
	h.goes("n2")
	if got := leader(p, p.ask(metadata)); got != "two.example" {
		t.Fatalf("the leader is at %s", got)
	}
}
