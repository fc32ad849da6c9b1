package identity

import (
	"errors"
	"strings"
	"testing"
)

func TestInvitedOperatorIsCertified(t *testing.T) {
	chat := authority(t, "chat")
	inviting := NewInvite(chat)
	invited, err := ParseInvite(" " + strings.ToUpper(inviting.Text()) + "\n")
	if err != nil || invited != inviting || invited.Owner() != chat.Owner() || len(inviting.Text()) != 77 {
		t.Fatalf("%q is parsed as %v (%v)", inviting.Text(), invited, err)
	}
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	csr, proof, err := invited.Request(key, "bob@laptop")
	if err != nil {
		t.Fatal(err)
	}
	chain, err := inviting.Accept(chat, csr, proof, start)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := invited.VerifyChain(chain, key, start); err != nil || n != (Name{"chat", Operator, "bob@laptop"}) {
		t.Errorf("%v (%v)", n, err)
	}

	// The relaying balancer can replace neither message.
	own, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	other := NewInvite(chat)
	forged, guessed, err := other.Request(own, "bob@laptop")
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string][2][]byte{"a request of its own": {forged, guessed}, "with the proof of the true one": {forged, proof}, "without proof": {csr, nil}} {
		if _, err := inviting.Accept(chat, tt[0], tt[1], start); !errors.Is(err, ErrNotInvited) {
			t.Errorf("%s: %v", name, err)
		}
	}
	strangers := authority(t, "chat")
	posed, err := strangers.Certify(key.Public(), Name{"chat", Operator, "bob@laptop"}, start, CertificateLife)
	if err != nil {
		t.Fatal(err)
	}
	mine, err := chat.Certify(own.Public(), Name{"chat", Operator, "bob@laptop"}, start, CertificateLife)
	if err != nil {
		t.Fatal(err)
	}
	replica, err := chat.Certify(key.Public(), Name{"chat", Replica, "us-0"}, start, CertificateLife)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := invited.VerifyChain(posed, key, start); !errors.Is(err, ErrUntrusted) {
		t.Errorf("the response of another authority: %v", err)
	}
	if _, err := invited.VerifyChain(mine, key, start); !errors.Is(err, ErrUntrusted) {
		t.Errorf("a response for another key: %v", err)
	}
	if _, err := invited.VerifyChain(replica, key, start); !errors.Is(err, ErrRole) {
		t.Errorf("a response for another role: %v", err)
	}
	if other.Mailbox() == inviting.Mailbox() || strings.Contains(inviting.Text(), inviting.Mailbox()) {
		t.Error("mailboxes of two invitations are equal, or contain the secret")
	}
	for _, text := range []string{"", "abc", inviting.Text() + "a", inviting.Text()[1:], strings.Repeat("1", 77)} {
		if _, err := ParseInvite(text); err == nil || strings.Contains(err.Error(), inviting.Text()[1:20]) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
