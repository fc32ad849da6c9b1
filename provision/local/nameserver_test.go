package local

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/provision"
)

const named = twoRegions + `dns: {provider: embedded, name: chat.example.com, clients: [{network: 10.1.0.0/16, region: local/us}]}
`

// A name server is told where each balancer is reached, by others where that is
// stated, and where it says how it does.
func TestANameServerIsLaidOut(t *testing.T) {
	text := strings.Replace(named, "local/eu, replicas", `local/eu, public: ["https://203.0.113.7"], replicas`, 1)
	svc := newService(t, "chat")
	l, err := layout(t, svc, text, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Save([]byte(text)); err != nil {
		t.Fatal(err)
	}
	w := l.Wants[len(l.Wants)-1]
	if w.ID != "nameserver" || w.Kind != provision.KindNameServer || w.Address != "dns://127.0.0.1:5300" {
		t.Errorf("wanted %+v", w)
	}
	got, err := ReadNameServer(svc.configFile("nameserver.yaml"))
	want := service.NameServerConfig{
		Service: "chat", Listen: "127.0.0.1:5300", Name: "chat.example.com", Zone: "chat.example.com", Routing: "latency", TTL: 30 * time.Second,
		Records: []service.NameRecord{
			{ID: "lb-us-0", Region: "local/us", Public: "http://127.0.0.1:9001", Check: "http://127.0.0.1:9001/readyz"},
			{ID: "lb-us-1", Region: "local/us", Public: "http://127.0.0.1:9002", Check: "http://127.0.0.1:9002/readyz"},
			{ID: "lb-eu-0", Region: "local/eu", Public: "https://203.0.113.7", Check: "http://127.0.0.1:9003/readyz"},
		},
		Clients: []service.DNSClient{{Network: "10.1.0.0/16", Region: "local/us"}},
		RTT:     map[string]time.Duration{"us-eu": 80 * time.Millisecond},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	if _, err := ReadNameServer(svc.SpecFile()); err == nil || !strings.Contains(err.Error(), svc.SpecFile()) {
		t.Errorf("a service.yaml was taken for its configuration: %v", err)
	}
}

// A hosted zone needs no process, and a name asks for no other object.
func TestOnlyAnEmbeddedNameHasAProcess(t *testing.T) {
	hosted := strings.Replace(named, "embedded, name: chat.example.com, clients: [{network: 10.1.0.0/16, region: local/us}]", "route53, name: chat.example.com, zone: example.com", 1)
	plain, with := mustLayout(t, twoRegions).Wants, mustLayout(t, named).Wants
	if n := len(mustLayout(t, hosted).Wants); n != len(plain) || len(with) != n+1 {
		t.Errorf("%d objects with a hosted zone, %d without a name, %d with a name server", n, len(plain), len(with))
	}
	for i := range plain {
		if plain[i].Kind == provision.KindReplica && plain[i].Spec != with[i].Spec {
			t.Errorf("a name changes %s", plain[i].ID)
		}
	}
}

func TestATakenPortOfNames(t *testing.T) {
	l := mustLayout(t, named)
	ports := l.recipes["nameserver"].Ports
	if want := []port{{Addr: "127.0.0.1:5300", Purpose: "names", Setting: "dns.listen"}}; !slices.Equal(ports, want) {
		t.Errorf("got %+v, want %+v", ports, want)
	}
}

// What was published is known until it is removed, whatever becomes of the rest.
func TestAPublishedNameIsKept(t *testing.T) {
	svc := newService(t, "chat")
	if err := svc.ForgetName(); err != nil {
		t.Error(err)
	}
	if _, has, err := svc.KeptName(); has || err != nil {
		t.Errorf("got %t, %v", has, err)
	}
	n := provision.Name{Name: "chat.example.com", Zone: "example.com", Service: "chat", Owner: "ab", Routing: provision.RoutingGeo, TTL: time.Minute, Private: true}
	with := n
	with.Records = []provision.Record{{ID: "lb-us-0"}}
	if err := svc.KeepName(with); err != nil {
		t.Fatal(err)
	}
	if got, has, err := svc.KeptName(); !has || err != nil || !reflect.DeepEqual(got, n) {
		t.Errorf("got %+v, %t, %v; want %+v", got, has, err, n)
	}
	if err := writeFile(svc.configFile(fileName), []byte("{")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := svc.KeptName(); err == nil || !strings.Contains(err.Error(), "name.json") {
		t.Errorf("damaged: got %v", err)
	}
	if err := svc.ForgetName(); err != nil {
		t.Error(err)
	}
	if _, has, err := svc.KeptName(); has || err != nil {
		t.Errorf("got %t, %v", has, err)
	}
}

// An owner is the same for as long as the state is, and tells nothing of the secrets.
func TestOwner(t *testing.T) {
	a, b := Tokens{Peer: "a", Store: "x"}, Tokens{Peer: "b", Store: "x"}
	if a.Owner() != (Tokens{Peer: "a", Store: "y"}).Owner() || a.Owner() == b.Owner() || len(a.Owner()) != 24 {
		t.Errorf("got %s and %s", a.Owner(), b.Owner())
	}
}
