package identity

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"math/big"
	"slices"
	"testing"
	"time"
)

// operators creates a service with recorded operators.
func operators(t *testing.T, ids ...string) (Home, *Authority, []*x509.Certificate) {
	t.Helper()
	h := Home{t.TempDir()}
	a, err := h.Create("chat", start)
	if err != nil {
		t.Fatal(err)
	}
	var certs []*x509.Certificate
	for _, id := range ids {
		key, err := NewKey()
		if err != nil {
			t.Fatal(err)
		}
		chain, err := a.Certify(key.Public(), Name{"chat", Operator, id}, start, CertificateLife)
		if err == nil {
			err = h.Record(chain[0])
		}
		if err != nil {
			t.Fatal(err)
		}
		certs = append(certs, chain[0])
	}
	return h, a, certs
}

func revoke(t *testing.T, h Home, now time.Time, certs ...*x509.Certificate) Revoked {
	t.Helper()
	list, err := h.Revoke(certs, now)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// Each revocation list has a greater number, and is parsed as it was encoded.
func TestRevocationListNumbersIncrease(t *testing.T) {
	h, a, certs := operators(t, "ann", "bob", "cy")
	if none, err := h.Revoked(); err != nil || none.Number() != 0 || none.Has(certs[0]) || len(none.Text()) > 0 {
		t.Errorf("before the first list: %+v, %v", none, err)
	}
	first := revoke(t, h, start, certs[0])
	if again := revoke(t, h, start.Add(time.Hour), certs[0]); again.Number() != 1 {
		t.Errorf("revoking a certificate twice created list %d", again.Number())
	}
	second := revoke(t, h, start.Add(CertificateLife/2), certs[1])
	read, err := ParseRevoked(second.Text(), a.Root())
	if err != nil || read.Number() != 2 || !read.Has(certs[0]) || !read.Has(certs[1]) || read.Has(certs[2]) || read.Len() != 2 {
		t.Errorf("the second list: %+v, %v", read, err)
	}
	if err := first.After(second); !errors.Is(err, ErrOlder) {
		t.Errorf("the first list after the second: %v", err)
	}
	for _, l := range []Revoked{second, first} {
		if err := errors.Join(second.After(l), l.After(Revoked{})); err != nil {
			t.Error(err)
		}
	}
	if err := (Revoked{}).After(first); !errors.Is(err, ErrOlder) {
		t.Errorf("an empty list after the first: %v", err)
	}
}

// A clock that is years ahead does not restore access: revoked certificates stay on every list, and
// certificates that it considers expired can be found and revoked.
func TestClockYearsAheadKeepsRevocations(t *testing.T) {
	h, _, certs := operators(t, "ann", "bob")
	revoke(t, h, start, certs[0])
	wrong := start.Add(20 * 365 * 24 * time.Hour)
	all, err := h.Recorded()
	if err != nil || len(SelectCertificates(all, "bob")) != 1 {
		t.Fatalf("%d certificates are recorded, %v", len(all), err)
	}
	second := revoke(t, h, wrong, SelectCertificates(all, "bob")...)
	if !second.Has(certs[0]) || !second.Has(certs[1]) {
		t.Errorf("%d are on the list, want both", second.Len())
	}
	if third := revoke(t, h, start.Add(time.Hour), certs...); third.Number() != 2 || third.Len() != 2 {
		t.Errorf("once the clock is correct: list %d with %d certificates", third.Number(), third.Len())
	}
}

// The length of a list is limited: the certificates revoked first are removed.
func TestRevocationListLengthIsLimited(t *testing.T) {
	_, a, certs := operators(t, "ann", "bob")
	list := Revoked{}
	for _, c := range certs {
		var err error
		if list, err = a.Revoke(list, []*x509.Certificate{c}, start); err != nil {
			t.Fatal(err)
		}
	}
	many := make([]*x509.Certificate, maxRevoked-1)
	for i := range many {
		many[i] = &x509.Certificate{SerialNumber: big.NewInt(int64(i + 1))}
	}
	list, err := a.Revoke(list, many, start)
	if err != nil || list.Len() != maxRevoked || list.Has(certs[0]) || !list.Has(certs[1]) {
		t.Errorf("%d are on the list, %v", list.Len(), err)
	}
}

// After the revocation of a delegated authority, the certificates that it signed are rejected by
// clients and servers, and so is the controller's own certificate.
func TestRevokedAuthorityRevokesItsCertificates(t *testing.T) {
	h, a, _ := operators(t)
	own, issuer, err := h.Controller(start)
	if err != nil {
		t.Fatal(err)
	}
	_, delegated := placed(t, own, issuer)
	all, err := h.Recorded()
	if err != nil || len(SelectCertificates(all, ControllersID)) != 2 {
		t.Fatalf("%d certificates are recorded, %v", len(all), err)
	}
	certified := func(by *Authority) tls.ConnectionState {
		key, err := NewKey()
		if err != nil {
			t.Fatal(err)
		}
		chain, err := by.Certify(key.Public(), Name{"chat", Balancer, "lb-us-0"}, start, CertificateLife)
		if err != nil {
			t.Fatal(err)
		}
		return tls.ConnectionState{PeerCertificates: chain}
	}
	byDelegated, byRoot := certified(delegated), certified(a)
	list := revoke(t, h, start, SelectCertificates(all, ControllersID)...)
	p := Party{Root: a.Root(), Now: func() time.Time { return start }, Revoked: list.Has}
	for name, config := range map[string]*tls.Config{"server": p.Server(Balancer), "client": p.Client(Balancer)} {
		if err := config.VerifyConnection(byDelegated); !errors.Is(err, ErrRevoked) {
			t.Errorf("%s: a certificate of the delegated authority: %v", name, err)
		}
		if err := config.VerifyConnection(byRoot); err != nil {
			t.Errorf("%s: a certificate of the service's own authority: %v", name, err)
		}
	}
	if !list.HasSerial(delegated.chain[0].SerialNumber.Text(16)) || list.HasSerial(a.Root().SerialNumber.Text(16)) {
		t.Error("HasSerial is false for the authority's serial number")
	}
	again, newIssuer, err := h.Controller(start.Add(time.Hour))
	if err != nil || slices.Equal(again, own) || slices.Equal(newIssuer, issuer) {
		t.Errorf("a revoked controller receives the same credentials: %v", err)
	}
}

// Only lists of the service's own authority are accepted.
func TestOtherRevocationListsAreRejected(t *testing.T) {
	h, a, certs := operators(t, "ann")
	_, other, theirs := operators(t, "ann")
	foreign, err := other.Revoke(Revoked{}, theirs, start)
	if err != nil {
		t.Fatal(err)
	}
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	chain, err := a.Delegate(key.Public(), "c", []Role{Balancer, Replica}, start, CertificateLife)
	if err != nil {
		t.Fatal(err)
	}
	delegated, err := Delegated(chain, key)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := delegated.Revoke(Revoked{}, certs, start); err == nil {
		t.Error("a delegated authority signed a list")
	}
	good := revoke(t, h, start, certs...).Text()
	turned := slices.Clone(good)
	turned[len(turned)/2] ^= 1
	for name, text := range map[string][]byte{
		"another service's": foreign.Text(), "no list": []byte("nothing"), "changed": turned,
		"twice": slices.Concat(good, good), "a certificate": EncodeChain(chain),
	} {
		if list, err := ParseRevoked(text, a.Root()); err == nil || list.Number() != 0 {
			t.Errorf("%s: accepted as list %d", name, list.Number())
		}
	}
	if _, err := ParseRevoked(foreign.Text(), a.Root()); !errors.Is(err, ErrUntrusted) {
		t.Errorf("another service's: %v", err)
	}
}

func TestOperatorsAreRecorded(t *testing.T) {
	h, _, certs := operators(t, "bob", "ann", "bob")
	self, err := h.OperatorParty("ann", start)
	if err != nil {
		t.Fatal(err)
	}
	own, err := self.Certificate()
	if err != nil {
		t.Fatal(err)
	}
	all, err := h.Recorded()
	if err != nil || len(all) != 4 || all[0].Subject.CommonName != "operator ann" || all[3].Subject.CommonName != "operator bob" {
		t.Fatalf("%d certificates are recorded, %v", len(all), err)
	}
	for who, want := range map[string]int{"bob": 2, "ann": 2, "an": 0, "": 0, Fingerprint(certs[0]): 1, Fingerprint(certs[0])[:8]: 1, Fingerprint(certs[0])[:7]: 0, Fingerprint(own.Leaf): 1} {
		if got := SelectCertificates(all, who); len(got) != want {
			t.Errorf("%q selects %d certificates, want %d", who, len(got), want)
		}
	}
	other := Home{t.TempDir()}
	if _, err := other.Revoke(certs, start); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without the authority: %v", err)
	}
}

// Clients and servers reject parties whose certificate is on the list, and accept others.
func TestRevokedPartiesAreRejected(t *testing.T) {
	h, a, certs := operators(t, "ann", "bob")
	list := revoke(t, h, start, certs[0])
	p := Party{Root: a.Root(), Now: func() time.Time { return start }, Revoked: list.Has}
	for i, c := range certs {
		s := tls.ConnectionState{PeerCertificates: []*x509.Certificate{c, a.Root()}}
		for _, config := range []*tls.Config{p.Server(Operator), p.ServerAllowingAnonymous(Operator)} {
			if err := config.VerifyConnection(s); errors.Is(err, ErrRevoked) != (i == 0) || (err == nil) != (i == 1) {
				t.Errorf("%s: %v", c.Subject.CommonName, err)
			}
		}
	}
}

// Revoking one certificate of the controllers by its fingerprint revokes all of them: an attacker with one of their
// machines has the delegated authority and the earlier certificates, too. Earlier versions named them after a balancer.
func TestRevokingControllerRevokesAllItsCertificates(t *testing.T) {
	home := Home{Dir: t.TempDir()}
	now := time.Now()
	if _, err := home.Create("chat", now); err != nil {
		t.Fatal(err)
	}
	if _, err := home.OperatorParty(ControllersID, now); err != nil { // another party with the same name
		t.Fatal(err)
	}
	for _, at := range []time.Time{now, now.Add(ControllerLife / 2)} { // issued twice
		if _, _, err := home.Controller(at); err != nil {
			t.Fatal(err)
		}
	}
	authority, err := home.Authority()
	if err != nil {
		t.Fatal(err)
	}
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	earlier, err := authority.Certify(key.Public(), Name{"chat", Controller, "lb-us-0"}, now, ControllerLife)
	if err == nil {
		err = home.Record(earlier[0])
	}
	if err != nil {
		t.Fatal(err)
	}
	all, err := home.Recorded()
	if err != nil {
		t.Fatal(err)
	}
	roles := map[Role]int{}
	for _, c := range all {
		n, err := NameOf(c)
		if err != nil {
			t.Fatal(err)
		}
		if n.Role == Operator {
			continue
		}
		clear(roles)
		for _, taken := range SelectCertificates(all, Fingerprint(c)) {
			n, err := NameOf(taken)
			if err != nil {
				t.Fatal(err)
			}
			roles[n.Role]++
		}
		if len(roles) != 2 || roles[Operator] != 0 || roles[Controller] != 3 {
			t.Errorf("by the fingerprint of a certificate as %s: %v are selected, want all three of the controllers and both of their authority", n.Role, roles)
		}
	}
	if len(roles) == 0 {
		t.Error("no controller is recorded")
	}
}
