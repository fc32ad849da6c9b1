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

// leaf is the certificate of a party.
func leaf(t *testing.T, p identity.Party) *x509.Certificate {
	t.Helper()
	pair, err := p.Certificate()
	if err != nil {
		t.Fatal(err)
	}
	return pair.Leaf
}

// revocationList is what follows a list once certificates of parties are revoked.
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

// An operator whose certificate is revoked is refused from then on, on connections that
// are open too; others go on. The machine remembers when it starts again.
func TestRevokedOperatorLosesAccess(t *testing.T) {
	w := newTestService(t)
	dir := t.TempDir()
	m := w.boot(dir, &fakeRunner{})
	ann := w.operator()
	if _, err := ann.Ensure(t.Context(), m.Machine, sampleDeployment("1")); err != nil {
		t.Fatal(err)
	}
	bob := &Operator{Party: w.party(identity.Operator, "bob")}
	open := &http.Client{Transport: &http.Transport{TLSClientConfig: bob.Party.To(m.Name)}}
	defer open.CloseIdleConnections()
	ask := func() int {
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
	if code := ask(); code != http.StatusOK {
		t.Fatalf("before: %d", code)
	}
	ann.Revoked = w.revocationList(identity.Revoked{}, bob.Party)
	s, err := ann.Ensure(t.Context(), m.Machine, sampleDeployment("1"))
	if err != nil || s.Revoked != 1 || s.Revision != "1" {
		t.Fatalf("handing the list over: %+v, %v", s, err)
	}
	if code := ask(); code != http.StatusForbidden {
		t.Errorf("on the connection that was open: %d", code)
	}
	for range 2 {
		if _, err := bob.Status(t.Context(), m.Machine); err == nil {
			t.Error("the revoked operator is let in")
		}
		if _, err := ann.Status(t.Context(), m.Machine); err != nil {
			t.Errorf("another operator: %v", err)
		}
		m.stop()
		m = w.boot(dir, &fakeRunner{})
	}
}

// A list that is older than the one a machine has, or that somebody else signed, is refused.
func TestInvalidRevocationListsAreRejected(t *testing.T) {
	w, strangers := newTestService(t), newTestService(t)
	dir := t.TempDir()
	m, bare := w.boot(dir, &fakeRunner{}), w.boot(t.TempDir(), &fakeRunner{})
	ann := w.operator()
	bob, cy := w.party(identity.Operator, "bob"), w.party(identity.Operator, "cy")
	first := w.revocationList(identity.Revoked{}, bob)
	second := w.revocationList(first, cy)
	ann.Revoked = second
	if _, err := ann.Ensure(t.Context(), m.Machine, sampleDeployment("1")); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name    string
		machine *testMachine
		list    []byte
		status  int
	}{
		{"an older one", m, first.Text(), http.StatusConflict},
		{"another service's", m, strangers.revocationList(second, bob).Text(), http.StatusBadRequest},
		{"none", m, nil, http.StatusBadRequest},
		{"no list", m, []byte("nothing"), http.StatusBadRequest},
		{"before it is enrolled", bare, second.Text(), http.StatusConflict},
	} {
		body, err := json.Marshal(revocation{string(tt.list)})
		if err != nil {
			t.Fatal(err)
		}
		_, err = ann.do(t.Context(), tt.machine.Machine, ann.Party.Pinned(keyFingerprint(t, tt.machine)), http.MethodPut, pathRevoked, body)
		var refusal *Refusal
		if !errors.As(err, &refusal) || refusal.Status != tt.status {
			t.Errorf("%s: %v, want %d", tt.name, err, tt.status)
		}
	}
	if s, err := ann.Status(t.Context(), m.Machine); err != nil || s.Revoked != 2 {
		t.Errorf("after that it goes by list %d, %v", s.Revoked, err)
	}
	if kept, err := os.ReadFile(filepath.Join(dir, FileRevoked)); err != nil || !bytes.Equal(kept, second.Text()) {
		t.Errorf("after that it keeps %q, %v", kept, err)
	}
}
