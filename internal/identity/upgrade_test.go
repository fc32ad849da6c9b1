package identity

import (
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// The identity directory that commit 735bbd76 wrote on 2026-11-26 opens with the same authority, operator and
// controller, and its certificates are renewed under their names. testdata/earlier holds keys of no service.
func TestIdentityOfEarlierVersionOpens(t *testing.T) {
	h := Home{Dir: t.TempDir()}
	if err := os.CopyFS(h.Dir, os.DirFS(filepath.Join("testdata", "earlier"))); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(h.Dir, "*.pem"))
	if err != nil || len(files) != 4 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		if err := os.Chmod(f, 0o600); err != nil { // git keeps no modes
			t.Fatal(err)
		}
	}
	a, err := h.Authority()
	if err != nil || a.Service() != "chat" || a.Owner() != "kdvogkq2kacl43dpsw5tjlnj3jxjtqtaxgwmlnzo3tztzrac7xqa" {
		t.Fatalf("authority of %q, owner %s: %v", a.Service(), a.Owner(), err)
	}
	written := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	for _, at := range []time.Time{written.Add(time.Hour), written.AddDate(0, 0, 89)} { // valid, and to be renewed
		p, err := h.OperatorParty("other", at)
		if err != nil {
			t.Errorf("operator at %s: %v", at, err)
			continue
		}
		shown, err := p.Certificate()
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := x509.ParseCertificate(shown.Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		if n, err := NameOf(leaf); err != nil || n.ID != "ann" || n.Role != Operator {
			t.Errorf("operator at %s: %v, %v", at, n, err)
		}
	}
	if _, delegated, err := h.ReadController(); err != nil || delegated.Owner() != a.Owner() {
		t.Errorf("controller: %v", err)
	}
	recorded, err := h.Recorded()
	if err != nil || len(recorded) < 3 {
		t.Errorf("%d recorded certificates: %v", len(recorded), err)
	}
}
