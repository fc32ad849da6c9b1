package agent

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"skyserve/internal/identity"
)

// leaf returns the certificate of a party.
func leaf(t *testing.T, p identity.Party) *x509.Certificate {
	t.Helper()
	pair, err := p.Certificate()
	if err != nil {
		t.Fatal(err)
	}
	return pair.Leaf
}

// revocationList returns the successor of a list, with the certificates of parties added.
func (w *testService) revocationList(before identity.Revoked, parties ...identity.Party) identity.Revoked {
	w.t.Helper()
	var certs []*x509.Certificate
	for _, p := range parties {
		certs = append(certs, leaf(w.t, p))
	}
	list, err := w.authority.Revoke(before, certs, time.Now())
	if err != nil {
		w.t.Fatal(err)
	}
	return list
}

// An operator with a revoked certificate is rejected, also on open connections; others are not. A
// restarted agent still rejects it.
func TestRevokedOperatorLosesAccess(t *testing.T) {
	w := newTestService(t)
	dir := t.TempDir()
	m := w.boot(dir, &fakeRunner{})
	ann := w.operator()
	if _, err := ann.Ensure(t.Context(), m.Target, sampleDeployment("1")); err != nil {
		t.Fatal(err)
	}
	bob := &Client{Party: w.party(identity.Operator, "bob")}
	open := &http.Client{Transport: &http.Transport{TLSClientConfig: bob.Party.To(m.Name)}}
	defer open.CloseIdleConnections()
	get := func() int {
		t.Helper()
		resp, err := open.Get("https://" + m.Address + pathStatus)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode
	}
	if code := get(); code != http.StatusOK {
		t.Fatalf("before: %d", code)
	}
	ann.Revoked = w.revocationList(identity.Revoked{}, bob.Party)
	s, err := ann.Ensure(t.Context(), m.Target, sampleDeployment("1"))
	if err != nil || s.Revoked != 1 || s.Revision != "1" {
		t.Fatalf("Revoke: %+v, %v", s, err)
	}
	if code := get(); code != http.StatusForbidden {
		t.Errorf("on the open connection: %d", code)
	}
	for range 2 {
		if _, err := bob.Status(t.Context(), m.Target); err == nil {
			t.Error("the revoked operator is accepted")
		}
		if _, err := ann.Status(t.Context(), m.Target); err != nil {
			t.Errorf("another operator: %v", err)
		}
		m.stop()
		m = w.boot(dir, &fakeRunner{})
	}
}

// A machine rejects a list that is older than its own, or that another CA signed.
func TestInvalidRevocationListsAreRejected(t *testing.T) {
	w, other := newTestService(t), newTestService(t)
	dir := t.TempDir()
	m, unenrolled := w.boot(dir, &fakeRunner{}), w.boot(t.TempDir(), &fakeRunner{})
	ann := w.operator()
	bob, cy := w.party(identity.Operator, "bob"), w.party(identity.Operator, "cy")
	first := w.revocationList(identity.Revoked{}, bob)
	second := w.revocationList(first, cy)
	ann.Revoked = second
	if _, err := ann.Ensure(t.Context(), m.Target, sampleDeployment("1")); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name    string
		machine *testMachine
		list    []byte
		status  int
	}{
		{"an older list", m, first.Text(), http.StatusConflict},
		{"another service's", m, other.revocationList(second, bob).Text(), http.StatusBadRequest},
		{"empty", m, nil, http.StatusBadRequest},
		{"not a list", m, []byte("nothing"), http.StatusBadRequest},
		{"before the enrolment", unenrolled, second.Text(), http.StatusConflict},
	} {
		body, err := json.Marshal(revocation{string(tt.list)})
		if err != nil {
			t.Fatal(err)
		}
		_, err = ann.do(t.Context(), tt.machine.Target, ann.Party.Pinned(keyFingerprint(t, tt.machine)), http.MethodPut, pathRevoked, body)
		var refusal *StatusError
		if !errors.As(err, &refusal) || refusal.Status != tt.status {
			t.Errorf("%s: %v, want %d", tt.name, err, tt.status)
		}
	}
	if s, err := ann.Status(t.Context(), m.Target); err != nil || s.Revoked != 2 {
		t.Errorf("list %d is in force (%v), want 2", s.Revoked, err)
	}
	if stored, err := os.ReadFile(filepath.Join(dir, FileRevoked)); err != nil || !bytes.Equal(stored, second.Text()) {
		t.Errorf("stored list: %q, %v", stored, err)
	}
}
