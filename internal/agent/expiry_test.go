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

// fakeClock is the clock of a whole service.
type fakeClock struct{ at atomic.Pointer[time.Time] }

func (c *fakeClock) set(t time.Time) { c.at.Store(&t) }
func (c *fakeClock) now() time.Time  { return *c.at.Load() }

// handshake returns why a TLS handshake between a client and a server fails; nil if it succeeds.
func handshake(t *testing.T, client *tls.Config, server *tls.Config) error {
	t.Helper()
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	serverErr := make(chan error, 1)
	go func() {
		err := tls.Server(far, server).Handshake()
		far.Close() // so that the client does not wait
		serverErr <- err
	}()
	err := tls.Client(near, client).Handshake()
	near.Close()
	if refused := <-serverErr; refused != nil && (errors.Is(refused, identity.ErrUntrusted) || errors.Is(refused, identity.ErrRevoked)) {
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
	controller        *Client
}

func newServiceWithClock(t *testing.T) *serviceWithClock {
	t.Helper()
	y := &serviceWithClock{testService: newTestService(t), clock: &fakeClock{}, began: time.Now()}
	y.clock.set(y.began)
	withClock := func(o *Options) { o.Now = y.clock.now }
	y.replica = y.boot(t.TempDir(), &fakeRunner{}, withClock)
	y.balancer = y.boot(t.TempDir(), &fakeRunner{}, withClock, func(o *Options) {
		o.Name = identity.Name{Service: "chat", Role: identity.Balancer, ID: "lb-us-0"}
	})
	y.balancer.Name = identity.Name{Service: "chat", Role: identity.Balancer, ID: "lb-us-0"}
	y.certifyAll()
	return y
}

// setDay sets the clock to n days after the start of the service.
func (y *serviceWithClock) setDay(n int) { y.clock.set(y.began.AddDate(0, 0, n)) }

// certifyAll does what `skyserve up` does for an operator with the CA: it certifies machines, and
// delivers a certificate and a delegated CA to the controller.
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
	operator := &Client{Party: p, Authority: y.authority, Revoked: revoked, Now: y.clock.now}
	for _, m := range []*testMachine{y.balancer, y.replica} {
		testkit.Eventually(y.t, "the fingerprint is published", func() bool { _, err := m.publisher.read(y.t.Context()); return err == nil })
		if _, err := operator.Ensure(y.t.Context(), m.Target, sampleDeployment("1")); err != nil {
			y.t.Fatal(err)
		}
	}
	own, issuer, err := y.home.Controller(now)
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
	y.controller = &Client{Party: party, Authority: authority, Revoked: revoked, Now: y.clock.now}
}

// ensureMachines does what a controller does with machines by itself.
func (y *serviceWithClock) ensureMachines() error {
	for _, m := range []*testMachine{y.balancer, y.replica} {
		if _, err := y.controller.Ensure(y.t.Context(), m.Target, sampleDeployment("1")); err != nil {
			return err
		}
	}
	return nil
}

// checkConnections returns why parties of the service cannot connect: balancers to replicas, the
// controller to the balancer's admin API, balancers to the controller's store.
func (y *serviceWithClock) checkConnections() error {
	balancer, replica := y.balancer.agent.currentCredentials(), y.replica.agent.currentCredentials()
	controller := y.controller.Party
	return errors.Join(
		handshake(y.t, balancer.Client(identity.Replica), replica.Server(identity.Balancer)),
		handshake(y.t, controller.Client(identity.Balancer), balancer.ServerAllowingAnonymous(identity.Operator, identity.Controller, identity.Balancer)),
		handshake(y.t, balancer.Client(identity.Controller), controller.Server(identity.Balancer, identity.Controller)),
	)
}

// `skyserve up` is not run for a year. The controller renews the certificates of machines until
// its delegated CA expires. Then an operator renews everything.
func TestYearWithoutOperator(t *testing.T) {
	testkit.Slow(t)
	y := newServiceWithClock(t)
	for day := 0; day < 365; day += 13 {
		y.setDay(day)
		if err := errors.Join(y.ensureMachines(), y.checkConnections()); err != nil {
			t.Fatalf("on day %d: %v", day, err)
		}
		for _, m := range []*testMachine{y.balancer, y.replica} {
			remaining := m.agent.Status().Expires.Sub(y.clock.now())
			if end := y.controller.Authority.Expires().Sub(y.clock.now()); remaining < min(identity.AlertBefore, end-time.Hour) {
				t.Errorf("on day %d: the certificate of %s is valid for another %s", day, m.Name.ID, remaining)
			}
		}
	}
	y.setDay(366)
	if err := y.checkConnections(); !errors.Is(err, identity.ErrUntrusted) {
		t.Errorf("after a year: %v", err)
	}
	if err := y.ensureMachines(); err == nil {
		t.Error("the controller renews after the expiry of its delegated CA")
	}
	y.certifyAll()
	if err := errors.Join(y.ensureMachines(), y.checkConnections()); err != nil {
		t.Errorf("after the renewal by an operator: %v", err)
	}
}

// Without a controller, certificates of machines expire after 90 days.
func TestCertificatesWithoutController(t *testing.T) {
	y := newServiceWithClock(t)
	for day, valid := range map[int]bool{1: true, 89: true, 91: false} {
		y.setDay(day)
		if err := handshake(t, y.balancer.agent.currentCredentials().Client(identity.Replica), y.replica.agent.currentCredentials().Server(identity.Balancer)); (err == nil) != valid {
			t.Errorf("on day %d: %v", day, err)
		}
	}
}

// A revoked controller cannot certify. Machines with the list reject certificates that it issued;
// those of machines are renewed before they receive the list.
func TestRevokedControllerCertificatesAreRejected(t *testing.T) {
	y := newServiceWithClock(t)
	y.setDay(40)
	if err := y.ensureMachines(); err != nil {
		t.Fatal(err)
	}
	if y.replica.agent.Status().Issuer == "" {
		t.Fatal("the status of the replica does not show the controller as issuer")
	}
	revokedCA := y.controller.Authority
	all, err := y.home.Recorded()
	if err != nil {
		t.Fatal(err)
	}
	list, err := y.home.Revoke(identity.SelectCertificates(all, identity.ControllersID), y.clock.now())
	if err != nil {
		t.Fatal(err)
	}
	before := *y.controller
	y.certifyAll() // renews the certificates of machines, then delivers the list
	if err := errors.Join(y.ensureMachines(), y.checkConnections()); err != nil {
		t.Fatalf("machines and the next controller: %v", err)
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
	chain, err := revokedCA.Certify(key.Public(), identity.Name{Service: "chat", Role: identity.Balancer, ID: "lb-us-0"}, y.clock.now(), identity.CertificateLife)
	if err != nil {
		t.Fatal(err)
	}
	posing := identity.NewParty(chain, key)
	posing.Now = y.clock.now
	if err := handshake(t, posing.Client(identity.Replica), y.replica.agent.proxyTLS()); !errors.Is(err, identity.ErrRevoked) {
		t.Errorf("a balancer that it certified: %v", err)
	}
	if _, err := before.Status(t.Context(), y.balancer.Target); err == nil {
		t.Error("the controller itself is accepted")
	}
}
