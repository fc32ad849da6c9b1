package deploy_test

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/internal/testkit"
	"skyserve/provision"
)

// party returns a party of the service with a certificate by an authority.
func party(t *testing.T, a *identity.Authority, role identity.Role) identity.Party {
	t.Helper()
	key, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	chain, err := a.Certify(key.Public(), identity.Name{Service: "chat", Role: role, ID: "x"}, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return identity.NewParty(chain, key)
}

// adminClient is the admin API of a balancer with one replica.
type adminClient struct {
	mu       sync.Mutex
	worker   telemetry.Worker
	requests []string
}

func (a *adminClient) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	request := r.Method + " " + r.URL.Path
	if len(a.requests) == 0 || a.requests[len(a.requests)-1] != request {
		a.requests = append(a.requests, request)
	}
	switch request {
	case "POST /workers/us-0/drain":
		if a.worker.State != service.StateDraining {
			a.worker.State, a.worker.DrainedBy = service.StateDraining, r.URL.Query().Get("by")
		}
		fmt.Fprint(w, "{}")
	case "GET /workers":
		_ = json.NewEncoder(w).Encode(map[string]any{"workers": []telemetry.Worker{a.worker}}) // the client's error fails the test
		a.worker.Outstanding = max(0, a.worker.Outstanding-1)
		if a.worker.State == service.StateStarting {
			a.worker.State = service.StateReady
		}
	case "GET /v1/snapshot": // also with a replica of a peer that all know
		replicas := []telemetry.ReplicaSnapshot{{ID: a.worker.ID, State: a.worker.State}, {ID: "eu-0", State: service.StateReady}}
		_ = json.NewEncoder(w).Encode(telemetry.Snapshot{Regions: []telemetry.RegionSnapshot{{Replicas: replicas}}}) // as above
	case "POST /workers":
		a.worker.State = service.StateStarting
		w.WriteHeader(http.StatusOK)
		fmt.Fprint(w, "{}")
	default:
		http.NotFound(w, r)
	}
}

// listen serves an admin API at a balancer's address.
func listen(t *testing.T, ip string, p identity.Party, h http.Handler) {
	t.Helper()
	listenAt(t, net.JoinHostPort(ip, "8100"), p, h)
}

// listenAt serves an API for operators and controllers.
func listenAt(t *testing.T, addr string, p identity.Party, h http.Handler) {
	t.Helper()
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(tls.NewListener(ln, p.Server(identity.Operator, identity.Controller))) }()
	t.Cleanup(func() {
		_ = srv.Close()
		<-ended
	})
}

// A replica is drained at its own balancer, whatever the others report, and is resumed once that
// balancer reports it ready.
func TestReplicaDrainsAndResumes(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	authority, err := identity.NewAuthority("chat", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	owner := &adminClient{worker: telemetry.Worker{ReplicaConfig: service.ReplicaConfig{ID: "us-0"}, State: service.StateReady, Outstanding: 1}}
	other := &adminClient{worker: telemetry.Worker{ReplicaConfig: service.ReplicaConfig{ID: "us-1"}, State: service.StateDraining, DrainedBy: telemetry.DrainedByUp}}
	dl := &deploy.Delivery{Party: party(t, authority, identity.Operator)}
	network := fmt.Sprintf("127.%d.%d.", 200+os.Getpid()%50, os.Getpid()/50%250)
	for n, api := range []http.Handler{owner, http.NotFoundHandler(), other, nil} { // the last does not respond
		ip := fmt.Sprint(network, n+1)
		if api != nil {
			listen(t, ip, party(t, authority, identity.Balancer), api)
		}
		dl.Machines = append(dl.Machines, provision.Object{ID: fmt.Sprint("lb-us-", n), Kind: provision.KindBalancer, PublicIP: netip.MustParseAddr(ip)})
	}
	replica := provision.Object{ID: "us-0", Kind: provision.KindReplica}
	dl.Drain(t.Context(), replica)
	if owner.worker.State != service.StateDraining || owner.worker.Outstanding != 0 {
		t.Errorf("drained: %+v", owner.worker)
	}
	dl.ResumeAndWait(t.Context(), replica)
	if owner.worker.State != service.StateReady {
		t.Errorf("resumed: %+v", owner.worker)
	}
	if want := []string{"POST /workers/us-0/drain", "GET /workers", "POST /workers", "GET /workers"}; !slices.Equal(owner.requests, want) {
		t.Errorf("its balancer received %q", owner.requests)
	}
	if other.worker.State != service.StateDraining || slices.Contains(other.requests, "POST /workers") {
		t.Errorf("a replica that an operator drained was resumed: %q", other.requests)
	}
	dl.Resume(t.Context(), []provision.Object{replica, {ID: "us-1", Kind: provision.KindReplica}})
	if other.worker.State == service.StateDraining {
		t.Error("a replica that an earlier run drained was not resumed")
	}
}

// Replicas that an operator or a controller drained stay drained when `up` updates their engine.
func TestResumeSkipsReplicasDrainedByOthers(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	authority, err := identity.NewAuthority("chat", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for n, by := range []string{"", telemetry.DrainedByController} {
		ip := fmt.Sprintf("127.%d.%d.%d", 200+os.Getpid()%50, os.Getpid()/50%250, 10+n)
		b := &adminClient{worker: telemetry.Worker{ReplicaConfig: service.ReplicaConfig{ID: "us-0"}, State: service.StateDraining, DrainedBy: by}}
		listen(t, ip, party(t, authority, identity.Balancer), b)
		dl := &deploy.Delivery{Party: party(t, authority, identity.Operator), Machines: []provision.Object{
			{ID: "lb-us-0", Kind: provision.KindBalancer, PublicIP: netip.MustParseAddr(ip)},
		}}
		replica := provision.Object{ID: "us-0", Kind: provision.KindReplica}
		dl.Drain(t.Context(), replica)
		dl.ResumeAndWait(t.Context(), replica)
		dl.Resume(t.Context(), []provision.Object{replica})
		if b.worker.State != service.StateDraining || slices.Contains(b.requests, "POST /workers") {
			t.Errorf("drained by %q, it was used again: %q", by, b.requests)
		}
		// An operator can undo the drain of an operator.
		if undrained := dl.Undrain(t.Context(), "us-0"); undrained != (by == "") || undrained != (b.worker.State == service.StateReady) {
			t.Errorf("drained by %q: undone %v, then %s", by, undrained, b.worker.State)
		}
		if dl.Undrain(t.Context(), "us-1") {
			t.Error("the drain of a replica that serves was undone")
		}
	}
}

// Balancers confirm the replicas that they use; one that is not ready at any of them is not
// confirmed, and balancers whose machine does not respond are not asked.
func TestBalancersConfirmReadyReplicas(t *testing.T) {
	authority, err := identity.NewAuthority("chat", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	dl := &deploy.Delivery{Party: party(t, authority, identity.Operator)}
	seen := map[string]deploy.AgentReport{}
	worker := func(id string, state service.ReplicaState) *adminClient {
		return &adminClient{worker: telemetry.Worker{ReplicaConfig: service.ReplicaConfig{ID: id}, State: state}}
	}
	silent := worker("us-3", service.StateReady)
	for n, api := range []*adminClient{worker("us-0", service.StateReady), worker("us-1", service.StateFailed), worker("us-2", service.StateDraining), silent} {
		id, ip := fmt.Sprint("lb-us-", n), fmt.Sprintf("127.%d.%d.%d", 200+os.Getpid()%50, os.Getpid()/50%250, 20+n)
		listen(t, ip, party(t, authority, identity.Balancer), api)
		dl.Machines = append(dl.Machines, provision.Object{ID: id, Kind: provision.KindBalancer, PublicIP: netip.MustParseAddr(ip)})
		seen[id] = deploy.AgentReport{}
	}
	seen["lb-us-3"] = deploy.AgentReport{Err: errors.New("no response")}
	own, everywhere := dl.ReadyAtBalancers(t.Context(), seen)
	if !maps.Equal(own, map[string]bool{"us-0": true}) || everywhere["us-0"] || !everywhere["eu-0"] {
		t.Errorf("confirmed %v by their own balancers, want us-0; %v by all, want eu-0", own, everywhere)
	}
	if len(silent.requests) > 0 {
		t.Errorf("the balancer of an unresponsive machine received %q", silent.requests)
	}
	// A balancer that is too slow to respond, on a machine that does, may still reject requests for a replica.
	dl.Machines = append(dl.Machines, provision.Object{ID: "lb-us-4", Kind: provision.KindBalancer, PublicIP: netip.MustParseAddr(fmt.Sprintf("127.%d.%d.29", 200+os.Getpid()%50, os.Getpid()/50%250))})
	if own, everywhere = dl.ReadyAtBalancers(t.Context(), seen); !own["us-0"] || everywhere["eu-0"] {
		t.Errorf("with a balancer that does not respond: %v by their own balancers, %v by all", own, everywhere)
	}
}
