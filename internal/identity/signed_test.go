package identity_test

import (
	"crypto/x509"
	"errors"
	"testing"
	"time"

	"skyserve/internal/identity"
)

// Every member of a service can verify what a controller signed. A changed text, another purpose, role, service or
// key, and an expired or revoked certificate are rejected.
func TestSignedTexts(t *testing.T) {
	now := time.Now()
	party := func(service string, role identity.Role) identity.Party {
		t.Helper()
		home := identity.Home{Dir: t.TempDir()}
		if _, err := home.Create(service, now); err != nil {
			t.Fatal(err)
		}
		return partyOf(t, home, role, now)
	}
	home := identity.Home{Dir: t.TempDir()}
	if _, err := home.Create("chat", now); err != nil {
		t.Fatal(err)
	}
	controller, balancer := partyOf(t, home, identity.Controller, now), partyOf(t, home, identity.Balancer, now)
	sign := func(p identity.Party) identity.Signed {
		t.Helper()
		s, err := p.Sign("launches", []byte("text"))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	genuine := sign(controller)
	for _, reader := range []identity.Party{controller, balancer} {
		if text, err := reader.OpenSigned(genuine, "launches", identity.Controller); err != nil || string(text) != "text" {
			t.Errorf("got %q, %v", text, err)
		}
	}
	with := func(change func(*identity.Signed)) identity.Signed {
		s := genuine
		change(&s)
		return s
	}
	for name, tt := range map[string]struct {
		signed  identity.Signed
		purpose string
		reader  func(*identity.Party)
		want    error
	}{
		"a changed text":       {signed: with(func(s *identity.Signed) { s.Text = []byte("texts") }), want: identity.ErrUntrusted},
		"another purpose":      {signed: genuine, purpose: "backups", want: identity.ErrUntrusted},
		"another role":         {signed: sign(balancer), want: identity.ErrRole},
		"another service":      {signed: sign(party("other", identity.Controller)), want: identity.ErrUntrusted},
		"another key":          {signed: with(func(s *identity.Signed) { s.Chain = sign(balancer).Chain }), want: identity.ErrRole},
		"another controller":   {signed: with(func(s *identity.Signed) { s.Signature = sign(partyOf(t, home, identity.Controller, now)).Signature }), want: identity.ErrUntrusted},
		"no certificate":       {signed: with(func(s *identity.Signed) { s.Chain = "" }), want: identity.ErrUntrusted},
		"no signature":         {signed: with(func(s *identity.Signed) { s.Signature = nil }), want: identity.ErrUntrusted},
		"nothing":              {want: identity.ErrUntrusted},
		"a revoked controller": {signed: genuine, reader: func(p *identity.Party) { p.Revoked = func(*x509.Certificate) bool { return true } }, want: identity.ErrRevoked},
		"an expired one":       {signed: genuine, reader: func(p *identity.Party) { p.Now = func() time.Time { return now.AddDate(2, 0, 0) } }, want: identity.ErrUntrusted},
	} {
		reader := balancer
		if tt.reader != nil {
			tt.reader(&reader)
		}
		purpose := "launches"
		if tt.purpose != "" {
			purpose = tt.purpose
		}
		if text, err := reader.OpenSigned(tt.signed, purpose, identity.Controller); !errors.Is(err, tt.want) || text != nil {
			t.Errorf("%s: got %q, %v, want %v", name, text, err, tt.want)
		}
	}
}

// partyOf returns a party of a service with a new key.
func partyOf(t *testing.T, home identity.Home, role identity.Role, now time.Time) identity.Party {
	t.Helper()
	a, err := home.Authority()
	if err != nil {
		t.Fatal(err)
	}
	key, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	chain, err := a.Certify(key.Public(), identity.Name{Service: a.Service(), Role: role, ID: "lb-a-0"}, now, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return identity.NewParty(chain, key)
}
