package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/identity"
)

// fakeNotices is a cloud whose interruption notice a test sets.
type fakeNotices struct {
	mu        sync.Mutex
	at        time.Time
	announced bool
	err       error
}

func (s *fakeNotices) notice(context.Context) (time.Time, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at, s.announced, s.err
}

// set replaces the notice.
func (s *fakeNotices) set(at time.Time, announced bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at, s.announced, s.err = at, announced, err
}

// watch starts polling by an agent; the returned function stops it.
func (s *fakeNotices) watch(t *testing.T, a *Agent) (end func()) {
	ctx, cancel := context.WithCancel(t.Context())
	a.opts.PollInterruption = s.notice
	go a.watchNotices(ctx)
	synctest.Wait()
	return func() {
		cancel()
		synctest.Wait()
	}
}

// advance advances the fake time.
func advance(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// A machine with an interruption notice reports the time, and drains a minute before; immediately
// if less time remains.
func TestInterruptedMachineDrains(t *testing.T) {
	for _, tt := range []struct{ notice, serves time.Duration }{{2 * time.Minute, time.Minute}, {time.Hour, 59 * time.Minute}, {30 * time.Second, 0}, {-time.Minute, 0}} {
		synctest.Test(t, func(t *testing.T) {
			s, a := &fakeNotices{}, newAgent(t, &fakeRunner{})
			defer s.watch(t, a)()
			advance(2 * noticeInterval)
			if st := a.Status(); st.Phase == PhaseInterrupted {
				t.Errorf("before: %+v", st)
			}
			interruptionAt := time.Now().Add(noticeInterval + tt.notice)
			s.set(interruptionAt, true, nil)
			advance(noticeInterval)
			drains := func() bool { return strings.HasSuffix(a.Status().Reason, "draining: interruption imminent") }
			if st := a.Status(); st.Phase != PhaseInterrupted || !st.InterruptionAt.Equal(interruptionAt) || drains() != (tt.serves == 0) {
				t.Errorf("%s before: %+v", tt.notice, st)
			}
			if tt.serves > 0 {
				advance(tt.serves - time.Second)
				if drains() {
					t.Errorf("notice of %s: drains more than a minute before", tt.notice)
				}
				advance(time.Second)
			}
			if !drains() {
				t.Errorf("notice of %s: does not drain: %+v", tt.notice, a.Status())
			}
		})
	}
}

// Some notices count from their arrival. A later one, one received after a restart of the agent,
// and missing notices do not postpone the interruption.
func TestEarliestNoticeApplies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, a := &fakeNotices{}, newAgent(t, &fakeRunner{})
		interruptionAt := time.Now().Add(time.Hour)
		s.set(interruptionAt, true, nil)
		end := s.watch(t, a)
		s.set(interruptionAt.Add(10*time.Minute), true, nil)
		advance(time.Minute)
		end()
		again := newAgent(t, &fakeRunner{})
		again.opts.Dir = a.opts.Dir
		defer s.watch(t, again)()
		s.set(interruptionAt, false, errors.New("no route to host"))
		advance(10 * time.Minute)
		if st := again.Status(); !st.InterruptionAt.Equal(interruptionAt.Truncate(time.Second)) {
			t.Errorf("got %+v, want an interruption at %s", st, interruptionAt)
		}
		interruptionAt = interruptionAt.Add(-20 * time.Minute)
		s.set(interruptionAt, true, nil)
		advance(noticeInterval)
		if st := again.Status(); !st.InterruptionAt.Equal(interruptionAt) {
			t.Errorf("after an earlier notice: got %+v, want %s", st, interruptionAt)
		}
	})
}

// A machine serves again after the cloud withdraws its notice or the maintenance has ended; not
// after a single poll without it. It keeps draining if an operator requested that.
func TestWithdrawnNoticeEndsDraining(t *testing.T) {
	for _, requested := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s, a := &fakeNotices{}, newAgent(t, &fakeRunner{})
			if requested {
				a.drain("requested by ann")
			}
			s.set(time.Now(), true, nil)
			end := s.watch(t, a)
			s.set(time.Time{}, false, nil)
			advance((withdrawnAfter - 1) * noticeInterval)
			if st := a.Status(); st.Phase != PhaseInterrupted || !strings.Contains(st.Reason, "draining") {
				t.Errorf("after %d polls without a notice: %+v", withdrawnAfter-1, st)
			}
			advance(noticeInterval)
			want := PhaseWaiting
			if requested {
				want = PhaseDraining
			}
			if st := a.Status(); st.Phase != want || !st.InterruptionAt.IsZero() {
				t.Errorf("after the withdrawal: %+v, want %s", st, want)
			}
			end()
			again := newAgent(t, &fakeRunner{})
			again.opts.Dir = a.opts.Dir
			defer s.watch(t, again)()
			if st := again.Status(); st.Phase == PhaseInterrupted {
				t.Errorf("after a restart of the agent: %+v", st)
			}
		})
	}
}

// An unreachable metadata server is logged once, not at every poll.
func TestUnreachableMetadataIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		s, a := &fakeNotices{err: errors.New("no route to host")}, newAgent(t, &fakeRunner{})
		a.log = slog.New(slog.NewTextHandler(&log, nil))
		defer s.watch(t, a)()
		advance(time.Hour)
		if n := strings.Count(log.String(), "no route to host"); n != 1 {
			t.Errorf("logged %d times", n)
		}
	})
}

// newIMDSServer returns the URL of an AWS metadata server with these texts by their paths below
// meta-data; an empty text is a server error.
func newIMDSServer(t *testing.T, at map[string]string) string {
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /latest/api/token", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "token") })
	mux.HandleFunc("GET /latest/meta-data/", func(w http.ResponseWriter, r *http.Request) {
		text, found := at[strings.TrimPrefix(r.URL.Path, "/latest/meta-data/")]
		switch {
		case r.Header.Get("X-aws-ec2-metadata-token") != "token":
			w.WriteHeader(http.StatusUnauthorized)
		case !found:
			w.WriteHeader(http.StatusNotFound)
		case text == "":
			w.WriteHeader(http.StatusInternalServerError)
		default:
			_, _ = io.WriteString(w, text)
		}
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL
}

func TestAWSMaintenanceEvents(t *testing.T) {
	const path, form = "events/maintenance/scheduled", "2 Jan 2006 15:04:05 GMT"
	now := time.Now().UTC().Truncate(time.Second)
	at := func(d time.Duration) string { return now.Add(d).Format(form) }
	event := func(state, before, after string) string {
		return fmt.Sprintf(`{"NotBefore": %q, "Code": "system-reboot", "Description": "scheduled reboot", "EventId": "instance-event-0d59", "NotAfter": %q, "State": %q}`, before, after, state)
	}
	for name, tt := range map[string]struct {
		events    []string
		in        time.Duration
		announced bool
	}{
		"none":                {},
		"in two weeks":        {events: []string{event("active", at(14*24*time.Hour), at(15*24*time.Hour))}},
		"within the hour":     {[]string{event("active", at(50*time.Minute), at(2*time.Hour))}, 50 * time.Minute, true},
		"earliest of two":     {[]string{event("active", at(50*time.Minute), ""), event("active", at(40*time.Minute), "")}, 40 * time.Minute, true},
		"in progress":         {[]string{event("active", at(-2*time.Hour), at(time.Hour))}, -2 * time.Hour, true},
		"in progress, no end": {[]string{event("active", at(-50*time.Minute), "")}, -50 * time.Minute, true},
		"ended":               {events: []string{event("active", at(-2*time.Hour), at(-time.Hour))}},
		"ended, no end":       {events: []string{event("active", at(-2*time.Hour), "")}},
		"completed":           {events: []string{event("completed", at(50*time.Minute), at(2*time.Hour))}},
		"cancelled":           {events: []string{event("canceled", at(50*time.Minute), at(2*time.Hour))}},
	} {
		t.Run(name, func(t *testing.T) {
			when, announced, err := PollMaintenanceAWS(newIMDSServer(t, map[string]string{path: "[" + strings.Join(tt.events, ",") + "]"}))(t.Context())
			if err != nil || announced != tt.announced || announced && !when.Equal(now.Add(tt.in)) {
				t.Errorf("announced %v at %s (%v)", announced, when, err)
			}
		})
	}
	if _, announced, err := PollMaintenanceAWS(newIMDSServer(t, nil))(t.Context()); announced || err != nil {
		t.Errorf("without a list: %v (%v)", announced, err)
	}
	for _, text := range []string{"", "<html>", `[{"NotBefore": "soon", "State": "active"}]`} {
		if _, announced, err := PollMaintenanceAWS(newIMDSServer(t, map[string]string{path: text}))(t.Context()); announced || err == nil {
			t.Errorf("%q: announced %v without an error", text, announced)
		}
	}
}

func TestGCPMaintenanceEvents(t *testing.T) {
	for text, want := range map[string]bool{"NONE": false, "MIGRATE_ON_HOST_MAINTENANCE": false, "TERMINATE_ON_HOST_MAINTENANCE\n": true} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/computeMetadata/v1/instance/maintenance-event" && r.Header.Get("Metadata-Flavor") == "Google" {
				_, _ = io.WriteString(w, text)
			}
		}))
		t.Cleanup(s.Close)
		began := time.Now()
		at, announced, err := PollMaintenanceGCP(s.URL)(t.Context())
		if announced != want || err != nil || announced && at.Before(began.Add(maintenanceNotice)) {
			t.Errorf("%q: announced %v at %s (%v)", text, announced, at, err)
		}
	}
}

// Replicas poll for interruptions and maintenance, balancers only for interruptions. A slow clock
// does not postpone the interruption of a spot machine.
func TestConfigSelectsCloudPolls(t *testing.T) {
	now := time.Now().UTC().Truncate(time.Second)
	const delay = 20 * time.Second // of a busy machine until a poll; less than the notices differ
	spot := func(in time.Duration) string {
		return `{"action": "terminate", "time": "` + now.Add(in).Format(time.RFC3339) + `"}`
	}
	scheduled := `[{"NotBefore": "` + now.Add(30*time.Minute).Format("2 Jan 2006 15:04:05 GMT") + `", "State": "active"}]`
	const action, events = "spot/instance-action", "events/maintenance/scheduled"
	for name, tt := range map[string]struct {
		role  identity.Role
		has   map[string]string
		in    time.Duration // 0 = no notice
		fails bool
	}{
		"nothing":                           {role: identity.Replica, has: nil},
		"an interruption":                   {role: identity.Replica, has: map[string]string{action: spot(100 * time.Second)}, in: 100 * time.Second},
		"interruption with a slow clock":    {role: identity.Replica, has: map[string]string{action: spot(time.Hour)}, in: maxSpotNotice},
		"maintenance":                       {role: identity.Replica, has: map[string]string{events: scheduled}, in: 30 * time.Minute},
		"both":                              {role: identity.Replica, has: map[string]string{events: scheduled, action: spot(time.Minute)}, in: time.Minute},
		"one fails, the other has a notice": {role: identity.Replica, has: map[string]string{events: "", action: spot(time.Minute)}, in: time.Minute},
		"one fails, the other has none":     {role: identity.Replica, has: map[string]string{events: ""}, fails: true},
		"balancer with maintenance":         {role: identity.Balancer, has: map[string]string{events: scheduled}},
	} {
		t.Run(name, func(t *testing.T) {
			c := Config{
				Service: "chat", Role: tt.role, ID: "us-0", Owner: strings.Repeat("a", 52), Listen: ":1", Dir: "/x", Publish: "guest-attributes",
				PollCloud: "aws", Metadata: newIMDSServer(t, tt.has),
			}
			o, err := c.Options()
			if err != nil {
				t.Fatal(err)
			}
			at, announced, err := o.PollInterruption(t.Context())
			off := at.Sub(now.Add(tt.in)).Abs()
			if announced != (tt.in != 0) || (err != nil) != tt.fails || announced && off > delay {
				t.Errorf("announced %v at %s (%v), want it in %s", announced, at, err, tt.in)
			}
		})
	}
}
