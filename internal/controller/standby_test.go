package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/store"
	"skyserve/internal/telemetry"
	"skyserve/internal/testkit"
)

// stateOf returns the state of a controller process; false while it does not respond.
func stateOf(listen string) (v View, ok bool) {
	res, err := http.Get("http://" + listen + "/v1/state")
	if err != nil {
		return v, false
	}
	defer res.Body.Close()
	return v, json.NewDecoder(res.Body).Decode(&v) == nil
}

// The leader knows its standbys and publishes them; when it ends, a standby leads with a greater term.
func TestStandbysAreKnown(t *testing.T) {
	defer http.DefaultClient.CloseIdleConnections()
	srv, err := store.Serve(t.Context(), store.Options{Dir: t.TempDir(), Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	names := []string{"lb-asia-0", "lb-eu-0", "lb-us-0"}
	listens, ends, done := map[string]string{}, map[string]func(){}, map[string]chan error{}
	for _, name := range names {
		ctx, end := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		listens[name], ends[name], done[name] = testkit.FreeAddr(), end, ended
		config := service.ControllerConfig{Service: "chat", ID: name, Controllers: names, Listen: listens[name], StoreURL: srv.URL()}
		go func() { ended <- Run(ctx, config, slog.New(slog.DiscardHandler)) }()
	}
	defer func() {
		for name, end := range ends {
			end()
			if err := <-done[name]; err != nil {
				t.Error(err)
			}
		}
	}()
	var leader string
	var term uint64
	leads := func(others int) func() bool {
		return func() bool {
			for name := range ends {
				if v, ok := stateOf(listens[name]); ok && v.Leading && len(v.Standbys) == others && !slices.Contains(v.Standbys, name) {
					leader, term = name, v.Token
					return true
				}
			}
			return false
		}
	}
	testkit.Eventually(t, "a leader with two standbys", leads(2))
	st, err := store.Connect(t.Context(), srv.URL(), "", store.ForService("chat"))
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	testkit.Eventually(t, "it publishes them", func() bool {
		data, _, err := st.Get(t.Context(), telemetry.AlertsKey("chat"))
		var published telemetry.Alerts
		return err == nil && json.Unmarshal(data, &published) == nil && published.Controller != nil &&
			published.Controller.Leader == leader && published.Controller.Term == 1 && len(published.Controller.Standbys) == 2 && published.Store.External
	})
	first, before := leader, term
	ends[first]()
	if err := <-done[first]; err != nil {
		t.Error(err)
	}
	delete(ends, first)
	testkit.Eventually(t, "a leader with one standby", leads(1))
	if leader == first || term <= before {
		t.Errorf("%s leads with token %d after %s with token %d", leader, term, first, before)
	}
	testkit.Eventually(t, "it publishes the next term", func() bool {
		data, _, err := st.Get(t.Context(), telemetry.AlertsKey("chat"))
		var published telemetry.Alerts
		return err == nil && json.Unmarshal(data, &published) == nil && published.Controller.Leader == leader && published.Controller.Term == 2
	})
}

// A member with a full disk raises a warning while the others have a majority; without one, the alert is critical.
func TestMemberDiskAlerts(t *testing.T) {
	full := &store.Outage{Since: time.Now(), Err: fmt.Errorf("no space left")}
	for name, c := range map[string]struct {
		outage *store.Outage
		leader string
		want   []string
	}{
		"healthy":         {nil, "b", nil},
		"its disk":        {full, "b", []string{"warning store the store in /store on the controller's machine cannot write, or its disk is nearly full: no space left; the other members", "warning store the store is not replicated: a cannot write"}},
		"and no majority": {full, "", []string{"critical store no majority", "critical store the store in /store"}},
		"no majority":     {&store.Outage{Err: store.ErrNoQuorum}, "", []string{"critical store no majority"}},
	} {
		w := newWorld()
		w.controllers = 3
		w.health.dir, w.health.writeOutage = "/store", func() *store.Outage { return c.outage }
		w.health.cluster = func() telemetry.StoreState {
			return telemetry.StoreState{Nodes: 3, Replicated: c.outage == nil, Leader: c.leader, Members: []telemetry.StoreMember{{Node: "a", State: "offline"}}, Problem: "a cannot write: no space left"}
		}
		var got []string
		for _, a := range w.alerts(time.Now()) {
			got = append(got, fmt.Sprintf("%s %s %s", a.Severity, a.Kind, a.Message))
		}
		slices.Sort(got)
		if !slices.EqualFunc(got, c.want, strings.HasPrefix) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// Announcements expire by the reader's clock, and a removed one counts no more.
func TestStandbysExpire(t *testing.T) {
	var s standbys
	changes := make(chan store.KeyChange, 4)
	for _, name := range []string{"a", "b", "self"} {
		changes <- store.KeyChange{Key: standbyPrefix("chat") + name}
	}
	changes <- store.KeyChange{Key: standbyPrefix("chat") + "b", Deleted: true}
	close(changes)
	s.track(standbyPrefix("chat"), changes)
	now := time.Now()
	if got := s.names("self", now); !slices.Equal(got, []string{"a"}) {
		t.Errorf("got %q", got)
	}
	if got := s.names("self", now.Add(standbyTTL+time.Second)); got == nil || len(got) > 0 {
		t.Errorf("later: got %#v", got)
	}
}

func TestControlAlerts(t *testing.T) {
	replicated := telemetry.StoreState{Nodes: 3, Replicated: true, Leader: "b", Members: []telemetry.StoreMember{{Node: "a", State: "current"}, {Node: "b", State: "leader"}, {Node: "c", State: "current"}}}
	degraded, lost, full := replicated, replicated, replicated
	degraded.Replicated, degraded.Problem = false, "no response from c"
	lost.Replicated, lost.Leader = false, ""
	full.Replicated, full.Problem = false, "c cannot write: no space left on device"
	full.Members = append(slices.Clone(full.Members[:2]), telemetry.StoreMember{Node: "c", State: "current", Problem: "no space left on device"})
	for name, c := range map[string]struct {
		store       *telemetry.StoreState
		controllers []string
		standby     bool
		age         time.Duration
		want        []string
	}{
		"alone":           {age: time.Hour},
		"healthy":         {&replicated, []string{"a", "b", "c"}, true, time.Hour, nil},
		"others starting": {&replicated, []string{"a", "b", "c"}, false, time.Second, nil},
		"no standby":      {&replicated, []string{"a", "b", "c"}, false, time.Hour, []string{"warning controller none of the other 2"}},
		"member lost":     {&degraded, []string{"a", "b", "c"}, true, time.Hour, []string{"warning store the store is not replicated: no response from c"}},
		"disk full":       {&full, []string{"a", "b", "c"}, true, time.Hour, []string{"warning store the store is not replicated: c cannot write: no space left on device (a in sync, b store leader, c cannot write); free disk space on c, or repair the disk; the member then returns automatically"}},
		"no quorum":       {&lost, []string{"a", "b", "c"}, false, time.Hour, []string{"critical store no majority", "warning controller none of the other 2"}},
	} {
		w := newWorld()
		w.immutable.ID, w.controllers = "a", len(c.controllers)
		w.setLease(w.lease)
		w.termStart = time.Now().Add(-c.age)
		if c.store != nil {
			w.health.cluster = func() telemetry.StoreState { return *c.store }
		}
		if c.standby {
			w.standbys.seen = map[string]time.Time{"b": time.Now()}
		}
		var got []string
		for _, a := range w.alerts(time.Now()) {
			got = append(got, fmt.Sprintf("%s %s %s; %s", a.Severity, a.Kind, a.Message, a.NextStep))
		}
		if !slices.EqualFunc(got, c.want, strings.HasPrefix) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
		if controllers, members := w.controlPlaneState(time.Now()); controllers.Leader != "a" || c.store != nil && !reflect.DeepEqual(members, *c.store) {
			t.Errorf("%s: publishes %+v, %+v", name, controllers, members)
		}
	}
}

// GET /v1/state shows the store in the words of 'status'.
func TestStateShowsTheStore(t *testing.T) {
	replicated := telemetry.StoreState{Nodes: 3, Replicated: true, Leader: "b", Members: []telemetry.StoreMember{{Node: "a", State: "current"}, {Node: "b", State: "leader"}}}
	degraded := replicated
	degraded.Replicated, degraded.Problem = false, "no response from c"
	for want, c := range map[string]struct {
		listen  string
		cluster *telemetry.StoreState
	}{
		"external":                               {},
		"not replicated":                         {listen: "127.0.0.1:1"},
		"replicated (a in sync, b store leader)": {"127.0.0.1:1", &replicated},
		"not replicated: no response from c (a in sync, b store leader)": {"127.0.0.1:1", &degraded},
	} {
		w := newWorld()
		w.immutable.StoreListen = c.listen
		if c.cluster != nil {
			w.health.cluster = func() telemetry.StoreState { return *c.cluster }
		}
		w.updateView()
		var v View
		if _, text := w.get(t, "/v1/state"); json.Unmarshal([]byte(text), &v) != nil || v.Store != want {
			t.Errorf("got %q, want %q", v.Store, want)
		}
	}
}

// Each leader has the term after that of the leader before, whatever their fencing tokens are, and keeps it.
func TestTermsCountLeaders(t *testing.T) {
	published := func(token, term uint64) []byte {
		text, err := json.Marshal(telemetry.Alerts{Token: token, Alerts: []telemetry.Alert{}, Controller: &telemetry.ControllerState{Term: term, Standbys: []string{}}})
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	for name, c := range map[string]struct {
		before []byte
		want   uint64
	}{
		"the first leader":             {nil, 1},
		"after another":                {published(17, 4), 5},
		"it has published":             {published(40, 5), 5},
		"after an earlier version":     {published(17, 17), 18},
		"which published no state":     {[]byte(`{"token":17,"alerts":[]}`), 1},
		"a damaged value":              {[]byte(`{`), 1},
		"a later leader has published": {published(41, 6), 0},
	} {
		w := newWorld()
		state := &fakeState{alerts: c.before}
		if c.before != nil {
			state.alertsRevision = 3
		}
		w.Controller.kv = state
		next := telemetry.Alerts{Token: 40, Alerts: []telemetry.Alert{}, Controller: &telemetry.ControllerState{Standbys: []string{}}}
		err := w.storeControlPlane(t.Context(), termLease{token: 40}, &next)
		var stored telemetry.Alerts
		if decoding := json.Unmarshal(state.alerts, &stored); c.want == 0 {
			if !errors.Is(err, errSuperseded) || stored.Token != 41 {
				t.Errorf("%s: %v, %+v", name, err, stored)
			}
		} else if err != nil || decoding != nil || stored.Token != 40 || stored.Controller.Term != c.want || next.Controller.Term != c.want {
			t.Errorf("%s: %v, %v, %+v; want term %d", name, err, decoding, stored.Controller, c.want)
		}
	}
}
