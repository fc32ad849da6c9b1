package agent

import (
	"crypto/tls"
	"errors"
	"io"
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

// sampleDeployment is a deployment of one unit with a secret.
func sampleDeployment(revision string) Deployment {
	return Deployment{Revision: revision, Units: []Unit{{
		Name: "engine", Args: []string{"engine"}, Secrets: map[string]string{"HF_TOKEN": "hunter2"},
		Files: map[string]string{"engine/config.yaml": "revision: " + revision}, Fixed: "f",
	}}}
}

func TestMachineIsEnrolledOnceThenUpdated(t *testing.T) {
	w, dir, runner := newTestService(t), t.TempDir(), &fakeRunner{}
	m, o := w.boot(dir, runner), w.operator()
	if s := m.agent.Status(); s.Phase != PhaseWaiting || s.Enrolled {
		t.Errorf("at boot: %+v", s)
	}
	if _, err := o.Status(t.Context(), m.Machine); !errors.Is(err, identity.ErrUntrusted) {
		t.Errorf("before it is enrolled: %v", err)
	}
	s, err := o.Ensure(t.Context(), m.Machine, sampleDeployment("1"))
	if err != nil || !s.Enrolled || s.Revision != "1" || s.Name != "skyserve://replica.chat/us-0" {
		t.Fatalf("%+v (%v)", s, err)
	}
	testkit.Eventually(t, "it is ready", func() bool { return m.agent.Status().Phase == PhaseReady })

	again, err := o.Ensure(t.Context(), m.Machine, sampleDeployment("1"))
	if err != nil || !again.Expires.Equal(s.Expires) {
		t.Errorf("ensured twice: %+v (%v)", again, err)
	}
	if _, err := o.Ensure(t.Context(), m.Machine, sampleDeployment("2")); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the new file is told", func() bool { return slices.Contains(runner.recordedCalls(), "reload engine") })
	if text, err := os.ReadFile(filepath.Join(dir, "engine/config.yaml")); err != nil || string(text) != "revision: 2" {
		t.Errorf("the file is %q (%v)", text, err)
	}
	if got := runner.recordedCalls(); !slices.Equal(got, []string{"start engine", "reload engine"}) {
		t.Errorf("did %v", got)
	}

	// Another deployment without the unit stops it.
	if _, err := o.Ensure(t.Context(), m.Machine, Deployment{Revision: "3"}); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "it is stopped", func() bool { return slices.Contains(runner.recordedCalls(), "stop engine") })
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
	before, err := o.Ensure(t.Context(), m.Machine, sampleDeployment("1"))
	if err != nil {
		t.Fatal(err)
	}
	m.stop()
	runner := &fakeRunner{}
	m = w.boot(dir, runner)
	m.Fingerprint = nil // it is known by its certificate now
	testkit.Eventually(t, "it is ready again", func() bool { return m.agent.Status().Phase == PhaseReady })
	after, err := o.Ensure(t.Context(), m.Machine, sampleDeployment("1"))
	if err != nil || after.Revision != "1" || !after.Expires.Equal(before.Expires) {
		t.Errorf("%+v, was %+v (%v)", after, before, err)
	}
	m.stop()
	other := newTestService(t)
	_, err = New(Options{Name: m.Name, Owner: other.authority.Owner(), Dir: dir, Publisher: &fakePublisher{}, Runner: runner})
	if !errors.Is(err, identity.ErrUntrusted) {
		t.Errorf("an agent that is told of another owner: %v", err)
	}
}

// What no certificate of the service's operators and controllers comes with gets
// nothing out of a machine and nothing into it.
func TestAgentRejectsOtherIdentities(t *testing.T) {
	w := newTestService(t)
	bare := w.boot(t.TempDir(), &fakeRunner{})
	enrolled := w.boot(t.TempDir(), &fakeRunner{})
	if _, err := w.operator().Ensure(t.Context(), enrolled.Machine, sampleDeployment("1")); err != nil {
		t.Fatal(err)
	}
	strangers := newTestService(t)
	for _, m := range []*testMachine{bare, enrolled} {
		for name, p := range map[string]identity.Party{
			"a replica": w.party(identity.Replica, "us-1"), "a balancer": w.party(identity.Balancer, "lb-us-0"), "an operator of another service": strangers.operator().Party,
		} {
			o := &Operator{Party: p, Authority: strangers.authority}
			for _, do := range []struct {
				method, path string
				body         string
			}{{http.MethodGet, pathStatus, ""}, {http.MethodPut, pathEnrolment, "{}"}, {http.MethodPut, pathDeployment, "{}"}, {http.MethodPost, pathDrain, ""}, {http.MethodGet, pathLogs + "engine", ""}} {
				_, err := o.do(t.Context(), m.Machine, o.Party.Pinned(keyFingerprint(t, m)), do.method, do.path, []byte(do.body))
				var refusal *Refusal
				if err == nil || errors.As(err, &refusal) || !strings.Contains(err.Error(), "tls") {
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
	controller := &Operator{Party: w.party(identity.Controller, "c")}
	if _, err := controller.Status(t.Context(), enrolled.Machine); err != nil {
		t.Errorf("the controller: %v", err)
	}
}

// keyFingerprint is the fingerprint of the key that a machine shows.
func keyFingerprint(t *testing.T, m *testMachine) string {
	t.Helper()
	if p := m.agent.enrolled(); p != nil {
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
	shown, err := o.presentedCertificate(t.Context(), m.Machine, pinned)
	if err != nil {
		t.Fatal(err)
	}
	certified := func(n identity.Name) string {
		chain, err := w.authority.Certify(shown.PublicKey, n, time.Now(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return string(identity.EncodeChain(chain))
	}
	otherKey, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := w.authority.Certify(otherKey.Public(), m.Name, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	elsewhere, err := newTestService(t).authority.Certify(shown.PublicKey, m.Name, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	past, err := w.authority.Certify(shown.PublicKey, m.Name, time.Now().Add(-2*time.Hour), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	good := certified(m.Name)
	tests := []struct {
		name, want string
		e          enrolment
	}{
		{"for another machine", "but this machine is", enrolment{Chain: certified(identity.Name{Service: "chat", Role: identity.Replica, ID: "us-1"})}},
		{"for another role", "but this machine is", enrolment{Chain: certified(identity.Name{Service: "chat", Role: identity.Balancer, ID: "us-0"})}},
		{"for another key", "not for the key", enrolment{Chain: string(identity.EncodeChain(foreign))}},
		{"by another authority", "not of this service", enrolment{Chain: string(identity.EncodeChain(elsewhere))}},
		{"past", "not of this service", enrolment{Chain: string(identity.EncodeChain(past))}},
		{"without a chain", "none found", enrolment{}},
		{"with a unit that cannot be", "units[0]: args: is missing", enrolment{Chain: good, Deployment: Deployment{Units: []Unit{{Name: "x"}}}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := o.put(t.Context(), m.Machine, pinned, pathEnrolment, tt.e)
			var refusal *Refusal
			if !errors.As(err, &refusal) || refusal.Status != http.StatusBadRequest || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
			if m.agent.enrolled() != nil {
				t.Error("it is enrolled")
			}
		})
	}
	if err := o.put(t.Context(), m.Machine, pinned, pathDeployment, sampleDeployment("1")); !isConflict(err) {
		t.Errorf("a deployment before the enrolment: %v", err)
	}
	if err := o.put(t.Context(), m.Machine, pinned, pathEnrolment, enrolment{Chain: good, Deployment: sampleDeployment("1")}); err != nil {
		t.Fatal(err)
	}
	if err := o.put(t.Context(), m.Machine, pinned, pathEnrolment, enrolment{Chain: good, Deployment: sampleDeployment("1")}); !isConflict(err) {
		t.Errorf("the same once more: %v", err)
	}
}

func isConflict(err error) bool {
	var refusal *Refusal
	return errors.As(err, &refusal) && refusal.Status == http.StatusConflict
}

// Who sits in between before the enrolment, or answers in the machine's place, is found
// out before anything is handed over.
func TestImpostorIsNotEnrolled(t *testing.T) {
	w := newTestService(t)
	m := w.boot(t.TempDir(), &fakeRunner{})
	impostor := w.boot(t.TempDir(), &fakeRunner{})
	posing := impostor.Machine
	posing.Fingerprint = m.publisher.read
	_, err := w.operator().Ensure(t.Context(), posing, sampleDeployment("1"))
	if !errors.Is(err, identity.ErrPin) || impostor.agent.enrolled() != nil {
		t.Errorf("enrolling an impostor: %v", err)
	}
	invited := w.operator()
	invited.Authority = nil
	if _, err := invited.Ensure(t.Context(), m.Machine, sampleDeployment("1")); !errors.Is(err, ErrNoAuthority) || m.agent.enrolled() != nil {
		t.Errorf("enrolling without the authority: %v", err)
	}
	silent := m.Machine
	silent.Fingerprint = (&fakePublisher{}).read
	if _, err := w.operator().Ensure(t.Context(), silent, sampleDeployment("1")); !errors.Is(err, ErrNoFingerprint) {
		t.Errorf("a machine that has told nothing yet: %v", err)
	}
}

func TestCertificatesAreRenewed(t *testing.T) {
	w, runner := newTestService(t), &fakeRunner{}
	m, o := w.boot(t.TempDir(), runner), w.operator()
	first, err := o.Ensure(t.Context(), m.Machine, sampleDeployment("1"))
	if err != nil {
		t.Fatal(err)
	}
	later := *o
	later.Now = func() time.Time { return first.Expires.Add(-identity.RenewBefore + time.Minute) }
	if _, err := later.Ensure(t.Context(), m.Machine, sampleDeployment("1")); err == nil || !strings.Contains(err.Error(), "not of this service") {
		t.Errorf("a certificate that is not good yet by the machine's clock: %v", err)
	}
	// The operator's clock is right, and the certificate is an old one.
	chain, err := w.authority.Certify(m.agent.selfSigned.Leaf.PublicKey, m.Name, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.put(t.Context(), m.Machine, o.Party.To(m.Name), pathCertificate, renewal{string(identity.EncodeChain(chain))}); err != nil {
		t.Fatal(err)
	}
	invited := *o
	invited.Authority = nil
	if s, err := invited.Ensure(t.Context(), m.Machine, sampleDeployment("1")); err != nil || s.Expires.After(time.Now().Add(2*time.Hour)) {
		t.Errorf("who has no authority renewed nothing, and that is no error: %+v (%v)", s, err)
	}
	s, err := o.Ensure(t.Context(), m.Machine, sampleDeployment("1"))
	if err != nil || s.Expires.Before(time.Now().Add(identity.CertificateLife-time.Hour)) {
		t.Errorf("%+v (%v)", s, err)
	}
	if got := runner.recordedCalls(); slices.Contains(got, "stop engine") {
		t.Errorf("renewing did %v", got)
	}
}

// A machine whose certificate ended is found again by its fingerprint.
func TestExpiredCertificateIsRenewed(t *testing.T) {
	w, runner, dir := newTestService(t), &fakeRunner{}, t.TempDir()
	m, o := w.boot(dir, runner), w.operator()
	first, err := o.Ensure(t.Context(), m.Machine, sampleDeployment("1"))
	if err != nil {
		t.Fatal(err)
	}
	m.stop()
	later := func() time.Time { return first.Expires.Add(time.Hour) }
	m = w.boot(dir, runner, func(o *Options) { o.Now = later })
	testkit.Eventually(t, "the fingerprint is told again", func() bool { _, err := m.publisher.read(t.Context()); return err == nil })
	p, err := w.home.OperatorParty("", later())
	if err != nil {
		t.Fatal(err)
	}
	p.Now = later
	s, err := (&Operator{Party: p, Authority: w.authority, Now: later}).Ensure(t.Context(), m.Machine, sampleDeployment("2"))
	if err != nil || s.Revision != "2" || !s.Expires.After(later().Add(identity.CertificateLife-time.Hour)) {
		t.Errorf("%+v (%v)", s, err)
	}
}

// The front passes what balancers ask, and stops doing so when the machine drains;
// what is in flight goes on.
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
	at := freePort(t)
	d := sampleDeployment("1")
	d.Front = &Proxy{Listen: at, To: engine.URL}
	if _, err := o.Ensure(t.Context(), m.Machine, d); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "it is ready", func() bool { return m.agent.Status().Phase == PhaseReady })
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
	for name, p := range map[string]identity.Party{"an operator": o.Party, "a replica": w.party(identity.Replica, "us-1"), "a stranger": newTestService(t).party(identity.Balancer, "lb-us-0")} {
		p.Root = w.authority.Root()
		if resp, err := as(p).Get("https://" + at + "/"); err == nil {
			resp.Body.Close()
			t.Errorf("%s: %s", name, resp.Status)
		}
	}
	if err := o.Drain(t.Context(), m.Machine); err != nil {
		t.Fatal(err)
	}
	s, err := o.Status(t.Context(), m.Machine)
	if err != nil || s.Phase != PhaseDraining || s.Reason != "asked by ann" || s.InFlight != 1 {
		t.Errorf("%+v (%v)", s, err)
	}
	resp, err := balancer.Get("https://" + at + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("a probe while it drains: %s", resp.Status)
	}
	close(release)
	if rest, err := io.ReadAll(slow.Body); err != nil || string(rest) != "data: 2\n\n" {
		t.Errorf("what was in flight: %q (%v)", rest, err)
	}
	testkit.Eventually(t, "nothing is in flight", func() bool { return m.agent.Status().InFlight == 0 })
}
