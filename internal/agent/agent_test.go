package agent

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/identity"
	"skyserve/internal/testkit"
)

// sampleDeployment returns a deployment of one unit with a secret.
func sampleDeployment(revision string) Deployment {
	return Deployment{Revision: revision, Units: []Unit{{
		Name: "engine", Args: []string{"engine"}, Secrets: map[string]string{"HF_TOKEN": "hunter2"},
		Files: map[string]string{"engine/config.yaml": "revision: " + revision}, ImmutableHash: "f",
	}}}
}

func TestMachineIsEnrolledOnceThenUpdated(t *testing.T) {
	w, dir, runner := newTestService(t), t.TempDir(), &fakeRunner{}
	m, o := w.boot(dir, runner), w.operator()
	if s := m.agent.Status(); s.Phase != PhaseWaiting || s.Enrolled {
		t.Errorf("at boot: %+v", s)
	}
	if _, err := o.Status(t.Context(), m.Target); !errors.Is(err, identity.ErrUntrusted) {
		t.Errorf("status before the enrolment: %v", err)
	}
	s, err := o.Ensure(t.Context(), m.Target, sampleDeployment("1"))
	if err != nil || !s.Enrolled || s.Revision != "1" || s.Name != "skyserve://replica.chat/us-0" {
		t.Fatalf("%+v (%v)", s, err)
	}
	testkit.Eventually(t, "the machine is ready", func() bool { return m.agent.Status().Phase == PhaseReady })

	again, err := o.Ensure(t.Context(), m.Target, sampleDeployment("1"))
	if err != nil || !again.Expires.Equal(s.Expires) {
		t.Errorf("second Ensure: %+v (%v)", again, err)
	}
	if _, err := o.Ensure(t.Context(), m.Target, sampleDeployment("2")); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the unit is reloaded", func() bool { return slices.Contains(runner.recordedCalls(), "reload engine") })
	if text, err := os.ReadFile(filepath.Join(dir, "engine/config.yaml")); err != nil || string(text) != "revision: 2" {
		t.Errorf("file: %q (%v)", text, err)
	}
	if got := runner.recordedCalls(); !slices.Equal(got, []string{"start engine", "reload engine"}) {
		t.Errorf("calls: %v", got)
	}

	// A deployment without the unit stops it.
	if _, err := o.Ensure(t.Context(), m.Target, Deployment{Revision: "3"}); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the unit is stopped", func() bool { return slices.Contains(runner.recordedCalls(), "stop engine") })
	err = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if info, e := d.Info(); err == nil && e == nil && info.Mode().Perm()&0o077 != 0 && path != dir {
			t.Errorf("%s: mode %v", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestAgentRestartKeepsEnrolment(t *testing.T) {
	w, dir := newTestService(t), t.TempDir()
	m, o := w.boot(dir, &fakeRunner{}), w.operator()
	before, err := o.Ensure(t.Context(), m.Target, sampleDeployment("1"))
	if err != nil {
		t.Fatal(err)
	}
	m.stop()
	runner := &fakeRunner{}
	m = w.boot(dir, runner)
	m.Fingerprint = nil // the certificate identifies it now
	testkit.Eventually(t, "the machine is ready again", func() bool { return m.agent.Status().Phase == PhaseReady })
	after, err := o.Ensure(t.Context(), m.Target, sampleDeployment("1"))
	if err != nil || after.Revision != "1" || !after.Expires.Equal(before.Expires) {
		t.Errorf("%+v, was %+v (%v)", after, before, err)
	}
	m.stop()
	other := newTestService(t)
	_, err = New(Options{Name: m.Name, Owner: other.authority.Owner(), Dir: dir, Publisher: &fakePublisher{}, Runner: runner})
	if !errors.Is(err, identity.ErrUntrusted) {
		t.Errorf("New with another owner: %v", err)
	}
}

// Only certificates of the service's operators and controllers allow access to a machine, before
// and after the enrolment.
func TestAgentRejectsOtherIdentities(t *testing.T) {
	w := newTestService(t)
	unenrolled := w.boot(t.TempDir(), &fakeRunner{})
	enrolled := w.boot(t.TempDir(), &fakeRunner{})
	if _, err := w.operator().Ensure(t.Context(), enrolled.Target, sampleDeployment("1")); err != nil {
		t.Fatal(err)
	}
	other := newTestService(t)
	for _, m := range []*testMachine{unenrolled, enrolled} {
		for name, p := range map[string]identity.Party{
			"a replica": w.party(identity.Replica, "us-1"), "a balancer": w.party(identity.Balancer, "lb-us-0"), "an operator of another service": other.operator().Party,
		} {
			o := &Client{Party: p, Authority: other.authority}
			for _, do := range []struct {
				method, path string
				body         string
			}{{http.MethodGet, pathStatus, ""}, {http.MethodPut, pathEnrolment, "{}"}, {http.MethodPut, pathDeployment, "{}"}, {http.MethodPost, pathDrain, ""}, {http.MethodGet, pathLogs + "engine", ""}} {
				_, err := o.do(t.Context(), m.Target, o.Party.Pinned(keyFingerprint(t, m)), do.method, do.path, []byte(do.body))
				// The client may see the alert, or only that the agent closed the connection
				// while it was writing. Neither a response nor a failed dial is a rejection.
				var refusal *StatusError
				var op *net.OpError
				if err == nil || errors.As(err, &refusal) || errors.As(err, &op) && op.Op == "dial" {
					t.Errorf("%s, %s %s: %v", name, do.method, do.path, err)
				}
			}
		}
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
		if resp, err := client.Get("https://" + m.Address + pathStatus); err == nil {
			resp.Body.Close()
			t.Errorf("without a certificate: %s", resp.Status)
		}
	}
	controller := &Client{Party: w.party(identity.Controller, "c")}
	if _, err := controller.Status(t.Context(), enrolled.Target); err != nil {
		t.Errorf("the controller: %v", err)
	}
}

// keyFingerprint returns the fingerprint of the key that a machine presents.
func keyFingerprint(t *testing.T, m *testMachine) string {
	t.Helper()
	if p := m.agent.currentCredentials(); p != nil {
		pair, err := p.Certificate()
		if err != nil {
			t.Fatal(err)
		}
		return identity.KeyFingerprint(pair.Leaf)
	}
	return m.agent.Fingerprint()
}

func TestInvalidEnrolmentsAreRejected(t *testing.T) {
	w := newTestService(t)
	m, o := w.boot(t.TempDir(), &fakeRunner{}), w.operator()
	pinned := o.Party.Pinned(m.agent.Fingerprint())
	presented, err := o.presentedCertificate(t.Context(), m.Target, pinned)
	if err != nil {
		t.Fatal(err)
	}
	certified := func(n identity.Name) string {
		chain, err := w.authority.Certify(presented.PublicKey, n, time.Now(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return string(identity.EncodeChain(chain))
	}
	otherKey, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	otherKeyChain, err := w.authority.Certify(otherKey.Public(), m.Name, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	otherCAChain, err := newTestService(t).authority.Certify(presented.PublicKey, m.Name, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	expired, err := w.authority.Certify(presented.PublicKey, m.Name, time.Now().Add(-2*time.Hour), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	good := certified(m.Name)
	tests := []struct {
		name, want string
		e          enrolment
	}{
		{"for another machine", "the certificate must be for", enrolment{Chain: certified(identity.Name{Service: "chat", Role: identity.Replica, ID: "us-1"})}},
		{"for another role", "the certificate must be for", enrolment{Chain: certified(identity.Name{Service: "chat", Role: identity.Balancer, ID: "us-0"})}},
		{"for another key", "got one for another key", enrolment{Chain: string(identity.EncodeChain(otherKeyChain))}},
		{"from another CA", "not trusted by this service", enrolment{Chain: string(identity.EncodeChain(otherCAChain))}},
		{"expired", "not trusted by this service", enrolment{Chain: string(identity.EncodeChain(expired))}},
		{"without a chain", "a PEM certificate, got none", enrolment{}},
		{"invalid unit", "units[0].args is required", enrolment{Chain: good, Deployment: Deployment{Units: []Unit{{Name: "x"}}}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := o.put(t.Context(), m.Target, pinned, pathEnrolment, tt.e)
			var refusal *StatusError
			if !errors.As(err, &refusal) || refusal.Status != http.StatusBadRequest || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
			if m.agent.currentCredentials() != nil {
				t.Error("the machine is enrolled")
			}
		})
	}
	if err := o.put(t.Context(), m.Target, pinned, pathDeployment, sampleDeployment("1")); !isConflict(err) {
		t.Errorf("deployment before the enrolment: %v", err)
	}
	if err := o.put(t.Context(), m.Target, pinned, pathEnrolment, enrolment{Chain: good, Deployment: sampleDeployment("1")}); err != nil {
		t.Fatal(err)
	}
	if err := o.put(t.Context(), m.Target, pinned, pathEnrolment, enrolment{Chain: good, Deployment: sampleDeployment("1")}); !isConflict(err) {
		t.Errorf("second enrolment: %v", err)
	}
}

func isConflict(err error) bool {
	var refusal *StatusError
	return errors.As(err, &refusal) && refusal.Status == http.StatusConflict
}

// Before the enrolment, an operator detects a machine in the middle and a replaced machine, and sends
// it nothing.
func TestImpostorIsNotEnrolled(t *testing.T) {
	w := newTestService(t)
	m := w.boot(t.TempDir(), &fakeRunner{})
	impostor := w.boot(t.TempDir(), &fakeRunner{})
	posing := impostor.Target
	posing.Fingerprint = m.publisher.read
	_, err := w.operator().Ensure(t.Context(), posing, sampleDeployment("1"))
	if !errors.Is(err, identity.ErrPin) || impostor.agent.currentCredentials() != nil {
		t.Errorf("Ensure of an impostor returned %v", err)
	}
	invited := w.operator()
	invited.Authority = nil
	if _, err := invited.Ensure(t.Context(), m.Target, sampleDeployment("1")); !errors.Is(err, ErrNoAuthority) || m.agent.currentCredentials() != nil {
		t.Errorf("Ensure without the CA returned %v", err)
	}
	unpublished := m.Target
	unpublished.Fingerprint = (&fakePublisher{}).read
	if _, err := w.operator().Ensure(t.Context(), unpublished, sampleDeployment("1")); !errors.Is(err, ErrNoFingerprint) {
		t.Errorf("machine without a published fingerprint: %v", err)
	}
}

func TestCertificatesAreRenewed(t *testing.T) {
	w, runner := newTestService(t), &fakeRunner{}
	m, o := w.boot(t.TempDir(), runner), w.operator()
	first, err := o.Ensure(t.Context(), m.Target, sampleDeployment("1"))
	if err != nil {
		t.Fatal(err)
	}
	later := *o
	later.Now = func() time.Time { return first.Expires.Add(-identity.RenewBefore + time.Minute) }
	if _, err := later.Ensure(t.Context(), m.Target, sampleDeployment("1")); err == nil || !strings.Contains(err.Error(), "not trusted by this service") {
		t.Errorf("certificate that is not valid yet by the machine's clock: %v", err)
	}
	// The operator's clock is correct, and the certificate is old.
	chain, err := w.authority.Certify(m.agent.selfSigned.Leaf.PublicKey, m.Name, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.put(t.Context(), m.Target, o.Party.To(m.Name), pathCertificate, renewal{string(identity.EncodeChain(chain))}); err != nil {
		t.Fatal(err)
	}
	invited := *o
	invited.Authority = nil
	if s, err := invited.Ensure(t.Context(), m.Target, sampleDeployment("1")); err != nil || s.Expires.After(time.Now().Add(2*time.Hour)) {
		t.Errorf("operator without the CA: %+v (%v), want the certificate unchanged", s, err)
	}
	s, err := o.Ensure(t.Context(), m.Target, sampleDeployment("1"))
	if err != nil || s.Expires.Before(time.Now().Add(identity.CertificateLife-time.Hour)) {
		t.Errorf("%+v (%v)", s, err)
	}
	if got := runner.recordedCalls(); slices.Contains(got, "stop engine") {
		t.Errorf("calls while renewing: %v", got)
	}
}

// A machine whose certificate has expired is identified by its fingerprint again.
func TestExpiredCertificateIsRenewed(t *testing.T) {
	w, runner, dir := newTestService(t), &fakeRunner{}, t.TempDir()
	m, o := w.boot(dir, runner), w.operator()
	first, err := o.Ensure(t.Context(), m.Target, sampleDeployment("1"))
	if err != nil {
		t.Fatal(err)
	}
	m.stop()
	later := func() time.Time { return first.Expires.Add(time.Hour) }
	m = w.boot(dir, runner, func(o *Options) { o.Now = later })
	testkit.Eventually(t, "the fingerprint is published again", func() bool { _, err := m.publisher.read(t.Context()); return err == nil })
	p, err := w.home.OperatorParty("", later())
	if err != nil {
		t.Fatal(err)
	}
	p.Now = later
	s, err := (&Client{Party: p, Authority: w.authority, Now: later}).Ensure(t.Context(), m.Target, sampleDeployment("2"))
	if err != nil || s.Revision != "2" || !s.Expires.After(later().Add(identity.CertificateLife-time.Hour)) {
		t.Errorf("%+v (%v)", s, err)
	}
}

// The proxy forwards requests of balancers. While the machine drains, it rejects new ones and
// completes those in flight.
func TestProxyServesOnlyBalancers(t *testing.T) {
	release := make(chan struct{})
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "data: 1\n\n")
		w.(http.Flusher).Flush()
		if r.URL.Path == "/slow" {
			<-release
		}
		_, _ = io.WriteString(w, "data: 2\n\n")
	}))
	defer engine.Close()
	w := newTestService(t)
	m, o := w.boot(t.TempDir(), &fakeRunner{}), w.operator()
	at := testkit.FreeAddr()
	d := sampleDeployment("1")
	d.Proxy = &Proxy{Listen: at, Upstream: engine.URL}
	if _, err := o.Ensure(t.Context(), m.Target, d); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the machine is ready", func() bool { return m.agent.Status().Phase == PhaseReady })
	as := func(p identity.Party) *http.Client {
		transport := &http.Transport{TLSClientConfig: p.Client(identity.Replica)}
		t.Cleanup(transport.CloseIdleConnections)
		return &http.Client{Transport: transport, Timeout: testkit.Timeout}
	}
	balancer := as(w.party(identity.Balancer, "lb-us-0"))
	slow, err := balancer.Get("https://" + at + "/slow")
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Body.Close()
	if _, err := io.ReadFull(slow.Body, make([]byte, len("data: 1\n\n"))); err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]identity.Party{"an operator": o.Party, "a replica": w.party(identity.Replica, "us-1"), "a balancer of another service": newTestService(t).party(identity.Balancer, "lb-us-0")} {
		p.Root = w.authority.Root()
		if resp, err := as(p).Get("https://" + at + "/"); err == nil {
			resp.Body.Close()
			t.Errorf("%s: %s", name, resp.Status)
		}
	}
	if err := o.Drain(t.Context(), m.Target); err != nil {
		t.Fatal(err)
	}
	s, err := o.Status(t.Context(), m.Target)
	if err != nil || s.Phase != PhaseDraining || s.Reason != "requested by ann" || s.InFlight != 1 {
		t.Errorf("%+v (%v)", s, err)
	}
	resp, err := balancer.Get("https://" + at + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("probe while draining: %s", resp.Status)
	}
	close(release)
	if remaining, err := io.ReadAll(slow.Body); err != nil || string(remaining) != "data: 2\n\n" {
		t.Errorf("response in flight: %q (%v)", remaining, err)
	}
	testkit.Eventually(t, "nothing is in flight", func() bool { return m.agent.Status().InFlight == 0 })
}

// A machine that presents another key than the one with which it was enrolled is recognised; one that has lost only its
// certificate is not mistaken for it.
func TestCheckKey(t *testing.T) {
	w, dir := newTestService(t), t.TempDir()
	m, o := w.boot(dir, &fakeRunner{}), w.operator()
	enrolled, err := m.publisher.read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := o.CheckKey(t.Context(), m.Target, enrolled); err != nil {
		t.Errorf("the same key: %v", err)
	}
	m.stop()
	if err := os.Remove(filepath.Join(dir, FileKey)); err != nil {
		t.Fatal(err)
	}
	m = w.boot(dir, &fakeRunner{})
	if err := o.CheckKey(t.Context(), m.Target, enrolled); !errors.Is(err, identity.ErrPin) {
		t.Errorf("another key: %v", err)
	}
}
