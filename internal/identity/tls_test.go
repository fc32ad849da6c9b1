package identity

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"
)

// start is the time at which all certificates of these tests are created.
var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func authority(t *testing.T, service string) *Authority {
	t.Helper()
	a, err := NewAuthority(service, start)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// member returns a party with its own certificate.
func member(t *testing.T, a *Authority, role Role, id string) Party {
	t.Helper()
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	chain, err := a.Certify(key.Public(), Name{a.Service(), role, id}, start, CertificateLife)
	if err != nil {
		t.Fatal(err)
	}
	return NewParty(chain, key)
}

// at returns a party with a constant clock.
func at(p Party, now time.Time) Party {
	p.Now = func() time.Time { return now }
	return p
}

// handshake connects a client and a server. In TLS 1.3 a client completes its handshake before the
// server has verified it, so both errors are returned.
func handshake(t *testing.T, client, server *tls.Config) (seen tls.ConnectionState, atClient, atServer error) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	a, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	s := tls.Server(b, server)
	done := make(chan error, 1)
	go func() {
		done <- s.Handshake()
	}()
	if atClient = tls.Client(a, client).Handshake(); atClient != nil {
		a.Close()
	}
	atServer = <-done
	return s.ConnectionState(), atClient, atServer
}

func TestHandshakesVerifyRoles(t *testing.T) {
	chat, other := authority(t, "chat"), authority(t, "chat") // another service with the same name
	replicasOf := func(p Party) *tls.Config { return at(p, start).Client(Replica) }
	tests := []struct {
		name             string
		client, server   *tls.Config
		atClient, atServ error // the error of each side; nil = none
	}{
		{"balancer to replica", replicasOf(member(t, chat, Balancer, "lb-us-0")), at(member(t, chat, Replica, "us-0"), start).Server(Balancer), nil, nil},
		{"operator to the admin API of a balancer", at(member(t, chat, Operator, "ann"), start).Client(Balancer), at(member(t, chat, Balancer, "lb-us-0"), start).Server(Operator, Controller, Balancer), nil, nil},
		{"replica to replica", replicasOf(member(t, chat, Replica, "us-1")), at(member(t, chat, Replica, "us-0"), start).Server(Balancer), nil, ErrRole},
		{"replica to the admin API of a balancer", at(member(t, chat, Replica, "us-0"), start).Client(Balancer), at(member(t, chat, Balancer, "lb-us-0"), start).Server(Operator, Controller, Balancer), nil, ErrRole},
		{"operator to replica", replicasOf(member(t, chat, Operator, "ann")), at(member(t, chat, Replica, "us-0"), start).Server(Balancer), nil, ErrRole},
		{"replica as a balancer", at(member(t, chat, Balancer, "lb-eu-0"), start).Client(Balancer), at(member(t, chat, Replica, "us-0"), start).Server(Balancer), ErrRole, nil},
		{"operator as a server", at(member(t, chat, Balancer, "lb-eu-0"), start).Client(Operator), at(member(t, chat, Operator, "ann"), start).Server(Balancer), ErrUntrusted, nil},
		{"balancer of another service", replicasOf(member(t, other, Balancer, "lb-us-0")), at(member(t, chat, Replica, "us-0"), start).Server(Balancer), ErrUntrusted, nil},
		{"client of another service that accepts any server", acceptingAnyServer(t, replicasOf(member(t, other, Balancer, "lb-us-0"))), at(member(t, chat, Replica, "us-0"), start).Server(Balancer), nil, ErrUntrusted},
		{"client without a certificate", &tls.Config{InsecureSkipVerify: true}, at(member(t, chat, Replica, "us-0"), start).Server(Balancer), nil, errAny},
		{"expired certificate of the client", at(member(t, chat, Balancer, "lb-us-0"), start).Client(Replica), at(member(t, chat, Replica, "us-0"), start.Add(CertificateLife+time.Second)).Server(Balancer), nil, ErrUntrusted},
		{"expired certificate of the server", at(member(t, chat, Balancer, "lb-us-0"), start.Add(CertificateLife+time.Second)).Client(Replica), at(member(t, chat, Replica, "us-0"), start).Server(Balancer), ErrUntrusted, nil},
		{"clock of the client behind by less than an hour", at(member(t, chat, Balancer, "lb-us-0"), start.Add(-59*time.Minute)).Client(Replica), at(member(t, chat, Replica, "us-0"), start).Server(Balancer), nil, nil},
		{"server with the expected name", at(member(t, chat, Operator, "ann"), start).To(Name{"chat", Replica, "us-0"}), at(member(t, chat, Replica, "us-0"), start).Server(Operator), nil, nil},
		{"server with another name", at(member(t, chat, Operator, "ann"), start).To(Name{"chat", Replica, "us-1"}), at(member(t, chat, Replica, "us-0"), start).Server(Operator), ErrRole, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, atClient, atServer := handshake(t, tt.client, tt.server)
			for _, side := range []struct {
				name      string
				got, want error
			}{{"client", atClient, tt.atClient}, {"server", atServer, tt.atServ}} {
				switch {
				case side.want == errAny && side.got != nil:
				case side.want != nil && !errors.Is(side.got, side.want):
					t.Errorf("the %s: %v, want %v", side.name, side.got, side.want)
				case side.want == nil && errors.Is(side.got, ErrUntrusted), side.want == nil && errors.Is(side.got, ErrRole):
					t.Errorf("the %s: %v", side.name, side.got)
				case tt.atClient == nil && tt.atServ == nil && side.got != nil:
					t.Errorf("the %s: %v", side.name, side.got)
				}
			}
		})
	}
}

// errAny matches any error.
var errAny = errors.New("any")

// acceptingAnyServer returns a client configuration that accepts any server.
func acceptingAnyServer(t *testing.T, c *tls.Config) *tls.Config {
	t.Helper()
	c.VerifyConnection = nil
	return c
}

func TestOpenListenerAcceptsAnonymous(t *testing.T) {
	chat := authority(t, "chat")
	open := at(member(t, chat, Balancer, "lb-us-0"), start).ServerAllowingAnonymous(Operator)
	state, _, err := handshake(t, &tls.Config{InsecureSkipVerify: true}, open)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := PeerName(&state); !errors.Is(err, ErrAnonymous) {
		t.Errorf("a client without a certificate: %v", err)
	}
	if _, err := PeerName(nil); !errors.Is(err, ErrAnonymous) {
		t.Errorf("a request without TLS: %v", err)
	}
	state, _, err = handshake(t, at(member(t, chat, Operator, "ann"), start).Client(Balancer), open)
	if n, of := PeerName(&state); err != nil || of != nil || n != (Name{"chat", Operator, "ann"}) {
		t.Errorf("ann is %v (%v, %v)", n, err, of)
	}
	if _, _, err = handshake(t, at(member(t, chat, Replica, "us-0"), start).Client(Balancer), open); !errors.Is(err, ErrRole) {
		t.Errorf("a replica: %v", err)
	}
}

// Certificates of a delegated authority are valid only for the delegated roles, according to the
// verifier of crypto/x509.
func TestDelegatedAuthorityIsConstrained(t *testing.T) {
	chat := authority(t, "chat")
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	chain, err := chat.Delegate(key.Public(), "controller", []Role{Replica}, start, CertificateLife)
	if err != nil {
		t.Fatal(err)
	}
	delegated, err := Delegated(chain, key)
	if err != nil {
		t.Fatal(err)
	}
	for _, role := range Roles() {
		t.Run(string(role), func(t *testing.T) {
			client := member(t, delegated, role, "x")
			own, err := client.Certificate()
			if err != nil {
				t.Fatal(err)
			}
			certs := parsed(t, own)
			_, err = Verify(certs, chat.Root(), start, x509.ExtKeyUsageClientAuth)
			if allowed := role == Replica; (err == nil) != allowed {
				t.Errorf("signed by the delegated authority: %v, allowed %v", err, allowed)
			}
		})
	}
	if _, err := Verify(chain, chat.Root(), start, x509.ExtKeyUsageClientAuth); !errors.Is(err, ErrUntrusted) {
		t.Errorf("the authority itself as a party: %v", err)
	}
	if _, err := delegated.Delegate(key.Public(), "more", []Role{Replica}, start, CertificateLife); err != nil {
		t.Fatal(err)
	}
	more, err := delegated.Delegate(key.Public(), "more", []Role{Replica}, start, CertificateLife)
	if err != nil {
		t.Fatal(err)
	}
	second, err := Delegated(more, key)
	if err != nil {
		t.Fatal(err)
	}
	own, err := member(t, second, Replica, "us-0").Certificate()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Verify(parsed(t, own), chat.Root(), start, x509.ExtKeyUsageClientAuth); !errors.Is(err, ErrUntrusted) {
		t.Errorf("an authority that a delegated authority signed: %v", err)
	}
	for _, roles := range [][]Role{nil, {Operator}, {Replica, Operator}} {
		if _, err := chat.Delegate(key.Public(), "controller", roles, start, CertificateLife); err == nil {
			t.Errorf("delegation of %v was accepted", roles)
		}
	}
}

func parsed(t *testing.T, pair *tls.Certificate) []*x509.Certificate {
	t.Helper()
	var chain []*x509.Certificate
	for _, der := range pair.Certificate {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		chain = append(chain, c)
	}
	return chain
}

func TestPinAcceptsOneKey(t *testing.T) {
	chat := authority(t, "chat")
	operator := at(member(t, chat, Operator, "ann"), start)
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	self, err := SelfSigned(key, "us-0", start)
	if err != nil {
		t.Fatal(err)
	}
	server := &tls.Config{Certificates: []tls.Certificate{*self}, ClientAuth: tls.RequireAnyClientCert}
	state, _, err := handshake(t, operator.Pinned(KeyFingerprint(self.Leaf)), server)
	if err != nil {
		t.Fatal(err)
	}
	root, err := RootOf(state.PeerCertificates, chat.Owner())
	if err != nil || !root.Equal(chat.Root()) {
		t.Errorf("the client presents the authority %v (%v)", root, err)
	}
	if _, err := RootOf(state.PeerCertificates, authority(t, "chat").Owner()); !errors.Is(err, ErrUntrusted) {
		t.Errorf("another authority's fingerprint: %v", err)
	}
	_, err, _ = handshake(t, operator.Pinned("aaaa"), server)
	var pin *PinError
	if !errors.As(err, &pin) || !errors.Is(err, ErrPin) || pin.Found != KeyFingerprint(self.Leaf) || pin.Want != "aaaa" {
		t.Errorf("another key than the pinned one: %v", err)
	}
}

func TestOwnerFingerprintAuthenticates(t *testing.T) {
	chat := authority(t, "chat")
	server := at(member(t, chat, Balancer, "lb-us-0"), start).ServerAllowingAnonymous(Operator)
	if _, err, _ := handshake(t, ToOwner(chat.Owner(), start, Balancer), server); err != nil {
		t.Error(err)
	}
	if _, err, _ := handshake(t, ToOwner(authority(t, "chat").Owner(), start, Balancer), server); !errors.Is(err, ErrUntrusted) {
		t.Errorf("another service: %v", err)
	}
	if _, err, _ := handshake(t, ToOwner(chat.Owner(), start, Replica), server); !errors.Is(err, ErrRole) {
		t.Errorf("another role: %v", err)
	}
}

func TestNamesAreParsed(t *testing.T) {
	for _, n := range []Name{{"chat", Operator, "ann@laptop"}, {"my-service", Replica, "us-0"}, {"c", Balancer, "lb-us-east-1-0"}} {
		got, err := ParseName(n.String())
		if err != nil || got != n {
			t.Errorf("%s is parsed as %v (%v)", n, got, err)
		}
	}
	for _, text := range []string{
		"", "https://replica.chat/us-0", "skyserve://chat/us-0", "skyserve://replica.chat", "skyserve://replica.chat/", "skyserve://root.chat/us-0",
		"skyserve://replica.chat/us-0/more", "skyserve://replica.chat/us-0?x", "skyserve://me@replica.chat/us-0", "skyserve://replica.chat:1/us-0",
		"skyserve://x.replica.chat/us-0", "skyserve://replica.Chat/us-0", "skyserve://replica.chat/us 0", "skyserve://replica.chat/%2e%2e/x",
	} {
		if n, err := ParseName(text); err == nil {
			t.Errorf("%q is parsed as %v", text, n)
		}
	}
	chat := authority(t, "chat")
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []Name{{"other", Replica, "us-0"}, {"chat", issuer, "x"}, {"chat", "root", "x"}, {"chat", Replica, "../us-0"}, {"chat", Replica, ""}} {
		if _, err := chat.Certify(key.Public(), n, start, CertificateLife); err == nil {
			t.Errorf("%v was certified", n)
		}
	}
	if roles := fmt.Sprint(Roles()); slices.Contains(Roles(), issuer) {
		t.Errorf("an authority is not a party, but the roles are %s", roles)
	}
}

func FuzzParseName(f *testing.F) {
	f.Add("skyserve://replica.chat/us-0")
	f.Add("skyserve://operator.my-service/ann@laptop")
	f.Fuzz(func(t *testing.T, text string) {
		n, err := ParseName(text)
		if err != nil {
			return
		}
		if again, err := ParseName(n.String()); err != nil || again != n {
			t.Errorf("%q is %v, which is formatted as %s and parsed as %v (%v)", text, n, n, again, err)
		}
	})
}
