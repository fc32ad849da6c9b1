package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// desk is an admin API with an operator and a guest as clients.
func desk(t *testing.T, now *time.Time) (operator, guest *telemetry.Client) {
	t.Helper()
	a := New(Options{Self: service.BalancerConfig{ID: "lb-us-0", Region: "aws/us-east-1"}, Now: func() time.Time { return *now }})
	dial := func(h http.HandlerFunc) *telemetry.Client {
		s := httptest.NewServer(h)
		t.Cleanup(s.Close)
		return telemetry.NewClient(s.URL, s.Client())
	}
	return dial(a.ServeCertified), dial(a.ServeGuest)
}

func mailboxNumber(i int) string { return fmt.Sprintf("%032x", i) }

func TestMailboxRelaysOneRequestAndAnswer(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	operator, guest := desk(t, &now)
	ctx, box := context.Background(), mailboxNumber(1)
	ask := telemetry.InviteRequest{CSR: []byte("csr"), Proof: []byte("proof")}
	if err := guest.PutInviteRequest(ctx, box, ask); !errors.Is(err, telemetry.ErrNotFound) {
		t.Errorf("asked before it is open: %v", err)
	}
	if err := operator.OpenInvite(ctx, box); err != nil {
		t.Fatal(err)
	}
	if err := operator.OpenInvite(ctx, box); !errors.Is(err, telemetry.ErrConflict) {
		t.Errorf("opened twice: %v", err)
	}
	if r, err := operator.InviteRequest(ctx, box); r != nil || err != nil {
		t.Errorf("before anybody asked: %v (%v)", r, err)
	}
	if err := guest.PutInviteRequest(ctx, box, ask); err != nil {
		t.Fatal(err)
	}
	if err := guest.PutInviteRequest(ctx, box, ask); !errors.Is(err, telemetry.ErrConflict) {
		t.Errorf("asked twice: %v", err)
	}
	if r, err := operator.InviteRequest(ctx, box); err != nil || string(r.CSR) != "csr" || string(r.Proof) != "proof" {
		t.Errorf("asked for %v (%v)", r, err)
	}
	if err := operator.PutInviteAnswer(ctx, box, telemetry.InviteAnswer{Chain: "chain"}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // a response that was lost in transit can be fetched again
		if a, err := guest.InviteAnswer(ctx, box); err != nil || a.Chain != "chain" {
			t.Errorf("answered %v (%v)", a, err)
		}
	}
	if err := operator.CloseInvite(ctx, box); err != nil {
		t.Fatal(err)
	}
	if _, err := guest.InviteAnswer(ctx, box); !errors.Is(err, telemetry.ErrNotFound) {
		t.Errorf("after it was closed: %v", err)
	}
}

func TestInvitationsExpireAndAreBounded(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	operator, guest := desk(t, &now)
	ctx := context.Background()
	for i := range maxInvites {
		if err := operator.OpenInvite(ctx, mailboxNumber(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := operator.OpenInvite(ctx, mailboxNumber(maxInvites)); err == nil || !strings.Contains(err.Error(), "429") {
		t.Errorf("one more: %v", err)
	}
	now = now.Add(telemetry.InviteTTL + time.Second)
	if err := guest.PutInviteRequest(ctx, mailboxNumber(0), telemetry.InviteRequest{}); !errors.Is(err, telemetry.ErrNotFound) {
		t.Errorf("after its time: %v", err)
	}
	if err := operator.OpenInvite(ctx, mailboxNumber(maxInvites)); err != nil {
		t.Errorf("after the others ended: %v", err)
	}
	if err := operator.OpenInvite(ctx, "abc"); err == nil {
		t.Error("a mailbox that could be guessed was opened")
	}
	large := telemetry.InviteRequest{CSR: make([]byte, maxInviteBody)}
	if err := guest.PutInviteRequest(ctx, mailboxNumber(maxInvites), large); err == nil || !strings.Contains(err.Error(), "400") {
		t.Errorf("a large request: %v", err)
	}
}

// Guests can access their invitation, and nothing else.
func TestGuestsMayOnlyRequestCertificates(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	operator, guest := desk(t, &now)
	ctx, box := context.Background(), mailboxNumber(1)
	if err := operator.OpenInvite(ctx, box); err != nil {
		t.Fatal(err)
	}
	_, request := guest.InviteRequest(ctx, box)
	_, snapshot := guest.Snapshot(ctx)
	for name, err := range map[string]error{
		"opening": guest.OpenInvite(ctx, mailboxNumber(2)), "closing": guest.CloseInvite(ctx, box), "answering": guest.PutInviteAnswer(ctx, box, telemetry.InviteAnswer{}),
		"reading another's request": request, "the snapshot": snapshot, "a worker": guest.RemoveWorker(ctx, "us-0", 0), "a way around": guest.OpenInvite(ctx, box+"/request/../../"+box),
	} {
		var status *telemetry.StatusError
		if !errors.As(err, &status) || status.Status != http.StatusUnauthorized {
			t.Errorf("%s: %v, want 401", name, err)
		}
	}
}
