package agent

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/identity"
)

func TestAWSRebalanceRecommendation(t *testing.T) {
	since := time.Date(2026, 3, 1, 12, 2, 0, 0, time.UTC)
	for _, tt := range []struct {
		name    string
		status  int
		text    string
		advised bool
		fails   bool
	}{
		{"no recommendation", http.StatusNotFound, "", false, false},
		{"recommendation", http.StatusOK, `{"noticeTime": "2026-03-01T12:02:00Z"}`, true, false},
		{"invalid document", http.StatusOK, "<html>", false, true},
		{"server error", http.StatusInternalServerError, "", false, true},
	} {
		mux := http.NewServeMux()
		mux.HandleFunc("PUT /latest/api/token", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "token") })
		mux.HandleFunc("GET /latest/meta-data/events/recommendations/rebalance", func(w http.ResponseWriter, r *http.Request) {
			status := tt.status
			if r.Header.Get("X-aws-ec2-metadata-token") != "token" {
				status = http.StatusUnauthorized
			}
			w.WriteHeader(status)
			_, _ = io.WriteString(w, tt.text)
		})
		s := httptest.NewServer(mux)
		at, advised, err := PollRebalanceAWS(s.URL)(t.Context())
		if advised != tt.advised || (err != nil) != tt.fails || advised && !at.Equal(since) {
			t.Errorf("%s: advised %t since %s (%v)", tt.name, advised, at, err)
		}
		s.Close()
	}
}

// A machine with a rebalance recommendation reports it and keeps serving.
func TestStatusReportsRebalanceRecommendation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		polls := 0
		advice := func(context.Context) (time.Time, bool, error) {
			switch polls++; polls {
			case 1:
				return time.Time{}, false, nil
			case 2:
				return time.Time{}, false, errors.New("no response")
			}
			return time.Time{}, true, nil
		}
		w := newTestService(t)
		a, err := New(Options{Name: replicaName, Owner: w.authority.Owner(), Dir: t.TempDir(), Publisher: &fakePublisher{}, Runner: &fakeRunner{}, PollRebalance: advice})
		if err != nil {
			t.Fatal(err)
		}
		before := a.Status()
		a.watchAdvice(t.Context()) // returns after the first recommendation
		after := a.Status()
		if !before.RebalanceAt.IsZero() || after.RebalanceAt.IsZero() || after.Phase != before.Phase || polls != 3 {
			t.Errorf("before %+v, after %+v, polls %d", before, after, polls)
		}
	})
}

// Only the controller may call the cloud's API through a machine, and only where the deployment
// configures it.
func TestOnlyControllerCallsCloudAPI(t *testing.T) {
	w := newTestService(t)
	var created []string
	m := w.boot(t.TempDir(), &fakeRunner{}, func(o *Options) {
		o.CloudHandler = func(c CloudAccess) (http.Handler, error) {
			created = append(created, c.Regions[0])
			if string(c.Config) != "{}" {
				return nil, errors.New("unsupported means")
			}
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				if err == nil {
					_, err = io.WriteString(w, r.PathValue("call")+" "+string(body))
				}
				if err != nil {
					t.Error(err)
				}
			}), nil
		}
	})
	controller := &Client{Party: w.party(identity.Controller, "c")}
	call := func(o *Client) (string, int) {
		t.Helper()
		text, err := o.CallCloud(t.Context(), m.Target, "list", []byte("all"))
		var refusal *StatusError
		if err != nil && !errors.As(err, &refusal) {
			t.Fatal(err)
		}
		if refusal != nil {
			return "", refusal.Status
		}
		return string(text), 0
	}
	deploy := func(revision string, c *CloudAccess) {
		t.Helper()
		if _, err := w.operator().Ensure(t.Context(), m.Target, Deployment{Revision: revision, Cloud: c}); err != nil {
			t.Fatal(err)
		}
	}
	deploy("1", nil)
	if _, status := call(controller); status != http.StatusConflict {
		t.Errorf("without a cloud configuration: %d", status)
	}
	deploy("2", &CloudAccess{Regions: []string{"gcp/us-central1"}, Config: json.RawMessage("{}")})
	for range 2 {
		if text, status := call(controller); text != "list all" || status != 0 {
			t.Errorf("got %q, %d", text, status)
		}
	}
	if _, status := call(w.operator()); status != http.StatusForbidden {
		t.Errorf("an operator: %d", status)
	}
	deploy("3", &CloudAccess{Regions: []string{"gcp/europe-west4"}, Config: json.RawMessage(`"invalid"`)})
	if _, status := call(controller); status != http.StatusConflict {
		t.Errorf("with an invalid configuration: %d", status)
	}
	if len(created) != 2 || created[0] != "gcp/us-central1" || created[1] != "gcp/europe-west4" {
		t.Errorf("created %q, want one handler for each deployment", created)
	}
}
