package tui

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
	"pgregory.net/rapid"

	"skyserve/internal/printable"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

func TestNumberFormats(t *testing.T) {
	tests := []struct{ got, want string }{
		{rate(nil), "-"},
		{rate(ptr(0.0)), "0"},
		{rate(ptr(0.04)), "0.0"},
		{rate(ptr(9.94)), "9.9"},
		{rate(ptr(9.96)), "10"},
		{rate(ptr(999.4)), "999"},
		{rate(ptr(999.6)), "1.0k"},
		{rate(ptr(12345.0)), "12k"},
		{rate(ptr(1.25e6)), "1.2M"},
		{rate(ptr(3e9)), "3.0G"},
		{count(0), "0"},
		{count(9999), "9999"},
		{count(10000), "10k"},
		{maybeCount(nil), "-"},
		{maybeCount(ptr(0)), "0"},
		{percent(nil), "-"},
		{percent(ptr(0.0)), "0%"},
		{percent(ptr(0.996)), "100%"},
		{millis(0.2), "0.2ms"},
		{millis(84.6), "85ms"},
		{millis(999), "999ms"},
		{millis(1420), "1.42s"},
		{millis(42100), "42.1s"},
		{millis(720000), "12m"},
		{age(-time.Second), "<1s"},
		{age(999 * time.Millisecond), "<1s"},
		{age(3200 * time.Millisecond), "3.2s"},
		{age(42 * time.Second), "42s"},
		{age(12 * time.Minute), "12m"},
		{age(12 * time.Hour), "12h"},
		{age(240 * time.Hour), "10d"},
		{maybeAge(nil, time.Hour), "-"},
		{maybeAge(ptr(int64(2000)), time.Second), "3.0s"},
		{shortModel("a/b/c"), "c"},
		{shortModel("c"), "c"},
		{shortModel("a/"), "a/"},
		{printable.Count(1, "region"), "1 region"},
		{printable.Count(0, "region"), "0 regions"},
		{newHistory(1).sparkSpan(9), "LAST 45s"},
		{newHistory(1).sparkSpan(24), "LAST 2m"},
		{newHistory(1).sparkSpan(91), "LAST 7.5m"},
		{newHistory(1).sparkSpan(120), "LAST 10m"},
	}
	for i, tt := range tests {
		if tt.got != tt.want {
			t.Errorf("%d: got %q, want %q", i, tt.got, tt.want)
		}
	}
}

func TestBar(t *testing.T) {
	tests := []struct {
		share float64
		g     glyphs
		want  string
	}{
		{0, unicodeGlyphs, "░░░░"},
		{1, unicodeGlyphs, "████"},
		{0.5, unicodeGlyphs, "██░░"},
		{0.4, unicodeGlyphs, "█▋░░"},
		{7, unicodeGlyphs, "████"},
		{-1, unicodeGlyphs, "░░░░"},
		{0.5, asciiGlyphs, "##.."},
	}
	for _, tt := range tests {
		if got := bar(tt.share, 4, tt.g); got != tt.want {
			t.Errorf("%g: got %q, want %q", tt.share, got, tt.want)
		}
	}
	if got := bar(0.5, 0, unicodeGlyphs); got != "" {
		t.Errorf("no room: got %q", got)
	}
}

func TestCleanAndCutProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, w := rapid.String().Draw(t, "s"), rapid.IntRange(0, 30).Draw(t, "w")
		c := clean(s)
		for _, r := range c {
			if r < ' ' || r == 0x7f {
				t.Fatalf("%q keeps %U", c, r)
			}
		}
		if clean(c) != c {
			t.Fatalf("cleaning %q again changes it to %q", c, clean(c))
		}
		short := cut(c, w, "…")
		if width(short) > w {
			t.Fatalf("cut(%q, %d) is %d wide", c, w, width(short))
		}
		if padded := pad(short, w, w%2 == 0); width(padded) != w {
			t.Fatalf("pad(%q, %d) is %d wide", short, w, width(padded))
		}
	})
}

func TestCutKeepsColours(t *testing.T) {
	p := paintOf(lipgloss.NewStyle().Bold(true))
	if got, want := cut(p.apply("abcdef")+"ghi", 4, "~"), p.on+"abc~"+p.off; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := cut("界界", 3, "~"); got != "界~" {
		t.Errorf("got %q", got)
	}
}

func TestNaturalOrder(t *testing.T) {
	names := []string{"us-10", "us-2", "us-2a", "eu-1", "us-02", "us", "us-1"}
	slices.SortFunc(names, compareNatural)
	if got, want := strings.Join(names, " "), "eu-1 us us-1 us-02 us-2 us-2a us-10"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	name := rapid.StringMatching(`[ab0-2]{0,5}`)
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := name.Draw(t, "a"), name.Draw(t, "b"), name.Draw(t, "c")
		if compareNatural(a, b) != -compareNatural(b, a) {
			t.Fatalf("%q and %q: not antisymmetric", a, b)
		}
		if naturalLess(a, b) && naturalLess(b, c) && !naturalLess(a, c) {
			t.Fatalf("%q < %q < %q: not transitive", a, b, c)
		}
	})
}

func TestRowOrderIsIndependentOfInput(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := crowd(3, 12)
		for i := range s.Regions {
			s.Regions[i].Replicas[i].KV = nil
		}
		order := sortOrder{sortKey(rapid.IntRange(0, int(sortKeys)-1).Draw(t, "key")), rapid.Bool().Draw(t, "reverse")}
		want := keysOf(selectRows(regionsOf(s), "", "", order, someCosts))
		s.Regions = rapid.Permutation(s.Regions).Draw(t, "regions")
		for i := range s.Regions {
			s.Regions[i].Replicas = rapid.Permutation(s.Regions[i].Replicas).Draw(t, "replicas")
		}
		if got := keysOf(selectRows(regionsOf(s), "", "", order, someCosts)); !slices.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
	})
}

// someCosts returns the prices of machines in some regions; prices in others are unknown.
var someCosts = prices{{"aws/region-0", "L4"}: 0.8, {"aws/region-1", "H100"}: 4, {"a/b", "L4"}: 1}

func keysOf(rows []row) []rowKey {
	keys := make([]rowKey, len(rows))
	for i, r := range rows {
		keys[i] = r.key()
	}
	return keys
}

// costless is a replica without known metrics and price.
func costless(id string) telemetry.ReplicaSnapshot {
	r := troubled(id, "FAILED", "")
	r.GPU = "none"
	return r
}

func TestUnknownValuesSortLast(t *testing.T) {
	for key := byPending; key <= byAge; key++ {
		if key == byOutstanding {
			continue // always known
		}
		for _, reverse := range []bool{false, true} {
			s := &telemetry.Snapshot{Regions: []telemetry.RegionSnapshot{region("a/b", costless("a"), replica("b", "L4", 0))}}
			rows := selectRows(regionsOf(s), "", "", sortOrder{key, reverse}, someCosts)
			if rows[0].replica.ID != "b" {
				t.Errorf("%s, reverse %t: an unknown value comes first", sortWords[key], reverse)
			}
		}
	}
}

func TestHistory(t *testing.T) {
	h := newHistory(1)
	see := func(at time.Duration, v *float64) {
		h.addSnapshot(&telemetry.Snapshot{At: noon.Add(at), Regions: []telemetry.RegionSnapshot{{Name: "a/b", OutputTokensPerSecond: v}}})
		h.drawUntil(noon.Add(at))
	}
	see(0, ptr(0.0))
	see(5*time.Second, ptr(10.0))
	see(6*time.Second, ptr(20.0)) // the same bucket: 15
	see(10*time.Second, nil)
	see(15*time.Second, ptr(30.0))
	regions := []*telemetry.RegionSnapshot{{Name: "a/b"}, {Name: "never/seen"}}
	if got := h.spark("a/b", 5, h.peak(regions, 5), unicodeGlyphs); got != " ▁▅ █" {
		t.Errorf("got %q", got)
	}
	if got := h.spark("never/seen", 3, 1, unicodeGlyphs); got != "   " {
		t.Errorf("an unknown region: got %q", got)
	}
	if v, known := h.total(regions, h.last); v != 30 || !known {
		t.Errorf("total: got %g, %t", v, known)
	}
	see(maxBuckets*bucketSpan+time.Minute, ptr(1.0))
	if got := strings.TrimSpace(h.spark("a/b", maxBuckets, 30, unicodeGlyphs)); got != "▁" {
		t.Errorf("values older than an hour must be dropped: got %q", got)
	}
}

func TestHistoryIsBounded(t *testing.T) {
	h := newHistory(1)
	h.addSnapshot(crowd(2*maxRegions, 0))
	if len(h.regions) != maxRegions {
		t.Errorf("got %d regions, want at most %d", len(h.regions), maxRegions)
	}
}

func TestBalancersState(t *testing.T) {
	th := mustTheme(NewTheme(ThemePlain, true))
	tests := []struct{ states, word, sign string }{
		{"", "NO BALANCER", "!"},
		{"READY", "READY", "*"},
		{"READY READY", "READY 2/2", "*"},
		{"READY UNREACHABLE", "READY 1/2", "!"},
		{"UNREACHABLE", "UNREACHABLE", "x"},
		{"UNREACHABLE UNREACHABLE", "UNREACHABLE", "x"},
		{"STARTING", "STARTING", "~"},
		{"READY STARTING", "READY 1/2", "~"},
		{"ODD", "ODD", "?"},
		{"STARTING INTERRUPTED", "READY 0/2", "x"},
		{"DRAINING STARTING READY", "READY 1/3", "~"},
		{"DRAINING", "DRAINING", "v"},
	}
	for _, tt := range tests {
		var bs []telemetry.BalancerSnapshot
		for _, s := range strings.Fields(tt.states) {
			bs = append(bs, telemetry.BalancerSnapshot{State: service.ReplicaState(s)})
		}
		sign, _ := th.glyphs.balancersMark(bs)
		if word := balancersState(bs); word != tt.word || sign != tt.sign {
			t.Errorf("%q: got %s %s, want %s %s", tt.states, sign, word, tt.sign, tt.word)
		}
	}
}

func TestRegionAge(t *testing.T) {
	tests := []struct {
		balancers []telemetry.BalancerSnapshot
		ms        int64
		known     bool
	}{
		{nil, 0, false},
		{[]telemetry.BalancerSnapshot{{State: "READY", AgeMillis: 5}, {State: "READY", AgeMillis: 9}}, 9, true},
		{[]telemetry.BalancerSnapshot{{State: "READY", AgeMillis: 5}, {State: "UNREACHABLE", AgeMillis: 90000}}, 5, true},
		{[]telemetry.BalancerSnapshot{{State: "UNREACHABLE", AgeMillis: 70000}, {State: "UNREACHABLE", AgeMillis: 60000}}, 60000, true},
	}
	for _, tt := range tests {
		if ms, known := metricsAge(&telemetry.RegionSnapshot{Balancers: tt.balancers}); ms != tt.ms || known != tt.known {
			t.Errorf("%+v: got %d, %t", tt.balancers, ms, known)
		}
	}
}

func FuzzRender(f *testing.F) {
	for _, s := range []*telemetry.Snapshot{normal(), hostile(), crowd(2, 3)} {
		data, err := json.Marshal(s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, 80, 24)
	}
	f.Fuzz(func(t *testing.T, data []byte, w, h int) {
		s := new(telemetry.Snapshot)
		if json.Unmarshal(data, s) != nil {
			return
		}
		w, h = 1+int(math.Abs(float64(w%400))), 1+int(math.Abs(float64(h%120)))
		frame := Render(s, s, w, h, mustTheme(NewTheme(ThemeMono, w%2 == 0)))
		if n := strings.Count(frame, "\n") + 1; n > h {
			t.Errorf("%d lines in %d", n, h)
		}
		for _, l := range strings.Split(frame, "\n") {
			if width(l) > w {
				t.Errorf("%d wide in %d: %q", width(l), w, l)
			}
		}
	})
}

// BenchmarkSnapshot measures the cost of a snapshot: receiving it, building the lists and
// drawing the frame. At one a second, 20 ms are 2 % of a core.
func BenchmarkSnapshot(b *testing.B) {
	for _, size := range []struct {
		name              string
		regions, replicas int
	}{{"1000", 20, 50}, {"10000", 20, 500}, {"30000", 30, 1000}} {
		for _, v := range []view{viewOverview, viewReplicas} {
			b.Run(size.name+"/"+viewNames[v], func(b *testing.B) {
				m := New(b.Context(), Config{Fetcher: &script{}, Interval: time.Second, Theme: mustTheme(NewTheme(ThemeDark, false)), Now: func() time.Time { return noon }})
				m.Update(tea.WindowSizeMsg{Width: 200, Height: 60})
				m.screen.setView(v)
				s, at := crowd(size.regions, size.replicas), noon
				b.ReportAllocs()
				for b.Loop() {
					at = at.Add(time.Second)
					m.Update(snapshotMsg{poll: m.polls, snapshot: s, at: at})
					m.View()
				}
			})
		}
	}
}

// BenchmarkFrame measures drawing alone, as after a keystroke.
func BenchmarkFrame(b *testing.B) {
	for _, v := range []view{viewOverview, viewReplicas} {
		b.Run("1000/"+viewNames[v], func(b *testing.B) {
			m := New(b.Context(), Config{Fetcher: &script{}, Interval: time.Second, Theme: mustTheme(NewTheme(ThemeDark, false)), Now: func() time.Time { return noon }})
			m.Update(tea.WindowSizeMsg{Width: 200, Height: 60})
			m.screen.setView(v)
			m.Update(snapshotMsg{poll: m.polls, snapshot: crowd(20, 50), at: noon})
			b.ReportAllocs()
			for b.Loop() {
				m.View()
			}
		})
	}
}

func TestTrafficOfOneRequestIsSingular(t *testing.T) {
	one := telemetry.Traffic{Seconds: 60, Outcomes: telemetry.Outcomes{Served: 1, Retries: 1}, Usage: telemetry.Usage{PromptTokens: 1, OutputTokens: 1}}
	want := "m, last 60 s: 1 request served, 0 rejected (429), 0 failed (5xx), 1 retry; 1 prompt token, of which 0 cached; 1 output token"
	if got := trafficDetails("m", &one); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
