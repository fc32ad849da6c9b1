package agent

import (
	"crypto/tls"
	"errors"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"skyserve/internal/identity"
	"skyserve/internal/testkit"
)

// fakeClock is the time of a whole service.
type fakeClock struct{ at atomic.Pointer[time.Time] }

func (c *fakeClock) set(t time.Time) { c.at.Store(&t) }
func (c *fakeClock) now() time.Time  { return *c.at.Load() }

// handshake says why a client and a server, each a party with a role, do not come together.
func handshake(t *testing.T, client *tls.Config, server *tls.Config) error {
	t.Helper()
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	served := make(chan error, 1)
	go func() {
		err := tls.Server(far, server).Handshake()
		far.Close() // the client is not to wait for more
		served <- err
	}()
	err := tls.Client(near, client).Handshake()
	near.Close()
	if refused := <-served; refused != nil && (errors.Is(refused, identity.ErrUntrusted) || errors.Is(refused, identity.ErrRevoked)) {
		return refused
	}
	return err
}

// serviceWithClock is a balancer and a replica with a controller, on one fake clock.
type serviceWithClock struct {
	*testService
	clock             *fakeClock
	began             time.Time
	balancer, replica *testMachine
	controller        *Operator
}

func newServiceWithClock(t *testing.T) *serviceWithClock {
	t.Helper()
	y := &serviceWithClock{testService: newTestService(t), clock: &fakeClock{}, began: time.Now()}
	y.clock.set(y.began)
	clocked := func(o *Options) { o.Now = y.clock.now }
	y.replica = y.boot(t.TempDir(), &fakeRunner{}, clocked)
	y.balancer = y.boot(t.TempDir(), &fakeRunner{}, clocked, func(o *Options) {
		o.Name = identity.Name{Service: "chat", Role: identity.Balancer, ID: "lb-us-0"}
	})
	y.balancer.Name = identity.Name{Service: "chat", Role: identity.Balancer, ID: "lb-us-0"}
	y.certifyAll()
	return y
}

// setDay is so many days after the service came up.
func (y *serviceWithClock) setDay(n int) { y.clock.set(y.began.AddDate(0, 0, n)) }

// certifyAll is what an operator with the service's authority does: machines are certified, and the
// controller is handed what it needs.
func (y *serviceWithClock) certifyAll() {
	y.t.Helper()
	now := y.clock.now()
	p, err := y.home.OperatorParty("ann", now)
	if err != nil {
		y.t.Fatal(err)
	}
	p.Now = y.clock.now
	revoked, err := y.home.Revoked()
	if err != nil {
		y.t.Fatal(err)
	}
	operator := &Operator{Party: p, Authority: y.authority, Revoked: revoked, Now: y.clock.now}
	for _, m := range []*testMachine{y.balancer, y.replica} {
		testkit.Eventually(y.t, "the fingerprint is told", func() bool { _, err := m.publisher.read(y.t.Context()); return err == nil })
		if _, err := operator.Ensure(y.t.Context(), m.Machine, sampleDeployment("1")); err != nil {
			y.t.Fatal(err)
		}
	}
	own, issuer, err := y.home.Controller("lb-us-0", now)
	if err != nil {
		y.t.Fatal(err)
	}
	dir := y.t.TempDir()
	if err := errors.Join(identity.WriteFile(filepath.Join(dir, identity.FileController), own), identity.WriteFile(filepath.Join(dir, identity.FileDelegated), issuer)); err != nil {
		y.t.Fatal(err)
	}
	party, authority, err := identity.Home{Dir: dir}.ReadController()
	if err != nil {
		y.t.Fatal(err)
	}
	party.Now = y.clock.now
	y.controller = &Operator{Party: party, Authority: authority, Revoked: revoked, Now: y.clock.now}
}

// ensureMachines is what a controller does with machines by itself.
func (y *serviceWithClock) ensureMachines() error {
	for _, m := range []*testMachine{y.balancer, y.replica} {
		if _, err := y.controller.Ensure(y.t.Context(), m.Machine, sampleDeployment("1")); err != nil {
			return err
		}
	}
	return nil
}

// checkConnections says why the parties of the service do not come together: balancers and replicas,
// the controller and the balancer's admin API, balancers and the controller's store.
func (y *serviceWithClock) checkConnections() error {
	balancer, replica := y.balancer.agent.enrolled(), y.replica.agent.enrolled()
	controller := y.controller.Party
	return errors.Join(
		handshake(y.t, balancer.Client(identity.Replica), replica.Server(identity.Balancer)),
		handshake(y.t, controller.Client(identity.Balancer), balancer.ServerAllowingAnonymous(identity.Operator, identity.Controller, identity.Balancer)),
		handshake(y.t, balancer.Client(identity.Controller), controller.Server(identity.Balancer, identity.Controller)),
	)
}

// Nobody runs `up` for a year: the controller renews the certificates of machines, and all
// go on as long as what it was handed holds. Then an operator renews all of it.
func TestYearWithoutOperator(t *testing.T) {
	testkit.Slow(t)
	y := newServiceWithClock(t)
	for day := 0; day < 365; day += 13 {
		y.setDay(day)
		if err := errors.Join(y.ensureMachines(), y.checkConnections()); err != nil {
			t.Fatalf("on day %d: %v", day, err)
		}
		for _, m := range []*testMachine{y.balancer, y.replica} {
			left := m.agent.Status().Expires.Sub(y.clock.now())
			if end := y.controller.Authority.Expires().Sub(y.clock.now()); left < min(identity.AlertBefore, end-time.Hour) {
				t.Errorf("on day %d: %s has %s left", day, m.Name.ID, left)
			}
		}
	}
	y.setDay(366)
	if err := y.checkConnections(); !errors.Is(err, identity.ErrUntrusted) {
		t.Errorf("a year and a day: %v", err)
	}
	if err := y.ensureMachines(); err == nil {
		t.Error("a controller renews beyond what it was handed")
	}
	y.certifyAll()
	if err := errors.Join(y.ensureMachines(), y.checkConnections()); err != nil {
		t.Errorf("once an operator has renewed all: %v", err)
	}
}

// Without a controller either, what machines were handed holds for 90 days.
func TestCertificatesWithoutController(t *testing.T) {
	y := newServiceWithClock(t)
	for day, serves := range map[int]bool{1: true, 89: true, 91: false} {
		y.setDay(day)
		if err := handshake(t, y.balancer.agent.enrolled().Client(identity.Replica), y.replica.agent.enrolled().Server(identity.Balancer)); (err == nil) != serves {
			t.Errorf("on day %d: %v", day, err)
		}
	}
}

// A controller that was taken out certifies nobody: what it signed is refused as soon as a
// machine knows the list, and machines that it had certified are certified anew before.
func TestRevokedControllerCertificatesAreRejected(t *testing.T) {
	y := newServiceWithClock(t)
	y.setDay(40)
	if err := y.ensureMachines(); err != nil {
		t.Fatal(err)
	}
	if y.replica.agent.Status().Issuer == "" {
		t.Fatal("the replica does not say that the controller certified it")
	}
	thief := y.controller.Authority
	all, err := y.home.Recorded()
	if err != nil {
		t.Fatal(err)
	}
	list, err := y.home.Revoke(identity.SelectCertificates(all, "lb-us-0"), y.clock.now())
	if err != nil {
		t.Fatal(err)
	}
	before := *y.controller
	y.certifyAll() // which renews machines, then hands them the list
	if err := errors.Join(y.ensureMachines(), y.checkConnections()); err != nil {
		t.Fatalf("machines, and the controller that came after it: %v", err)
	}
	for _, m := range []*testMachine{y.balancer, y.replica} {
		if s := m.agent.Status(); s.Issuer != "" || s.Revoked != list.Number() {
			t.Errorf("%s: %+v", m.Name.ID, s)
		}
	}
	key, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	chain, err := thief.Certify(key.Public(), identity.Name{Service: "chat", Role: identity.Balancer, ID: "lb-us-0"}, y.clock.now(), identity.CertificateLife)
	if err != nil {
		t.Fatal(err)
	}
	posing := identity.NewParty(chain, key)
	posing.Now = y.clock.now
	if err := handshake(t, posing.Client(identity.Replica), y.replica.agent.proxyTLS()); !errors.Is(err, identity.ErrRevoked) {
		t.Errorf("a balancer of its making is let in: %v", err)
	}
	if _, err := before.Status(t.Context(), y.balancer.Machine); err == nil {
		t.Error("the controller itself is let in")
	}
}
