package provision_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"skyserve/internal/service"
	"skyserve/provision"
)

var regions = []service.Region{"local/us", "local/eu"}

// drawWants draws desired objects with unique ids.
func drawWants(t *rapid.T) []provision.Desired {
	kinds := []provision.ObjectKind{provision.KindReplica, provision.KindBalancer, provision.KindController, provision.KindFirewall, provision.KindIdentity}
	var wants []provision.Desired
	for i := range rapid.IntRange(0, 8).Draw(t, "wants") {
		wants = append(wants, provision.Desired{
			ID:            fmt.Sprintf("o%d", i),
			Kind:          rapid.SampledFrom(kinds).Draw(t, "kind"),
			Service:       "chat",
			Region:        rapid.SampledFrom(regions).Draw(t, "region"),
			SpecHash:      rapid.SampledFrom([]string{"a", "b"}).Draw(t, "spec"),
			ImmutableHash: rapid.SampledFrom([]string{"", "f", "g"}).Draw(t, "fixed"),
			CostPerHour:   float64(rapid.IntRange(0, 3).Draw(t, "cost")),
		})
	}
	return wants
}

// drawHave draws existing objects: some with desired ids, some with others, some terminated, some duplicate.
func drawHave(t *rapid.T) []provision.Object {
	var have []provision.Object
	for i, w := range drawWants(t) {
		o := objectOf(w, i)
		o.ID = fmt.Sprintf("o%d", rapid.IntRange(0, 9).Draw(t, "id"))
		o.TerminatedReason = rapid.SampledFrom([]string{"", "", "killed"}).Draw(t, "gone")
		have = append(have, o)
	}
	return have
}

// objectOf returns the object that launching w creates.
func objectOf(w provision.Desired, handle int) provision.Object {
	return provision.Object{
		ID: w.ID, Kind: w.Kind, Service: w.Service, Region: w.Region, SpecHash: w.SpecHash, ImmutableHash: w.ImmutableHash, BuildHash: w.BuildHash,
		Address: w.Address, Admin: w.Admin, CostPerHour: w.CostPerHour, Handle: fmt.Sprint(handle),
	}
}

func TestDiffOfDesiredStateIsEmpty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		wants := drawWants(t)
		var have []provision.Object
		for i, w := range wants {
			have = append(have, objectOf(w, i))
		}
		if changes := provision.Diff(wants, have); len(changes) != 0 {
			t.Fatalf("got %+v", changes)
		}
	})
}

func TestDiffIgnoresOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		wants, have := drawWants(t), drawHave(t)
		want := provision.Diff(wants, have)
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		rng.Shuffle(len(wants), func(i, j int) { wants[i], wants[j] = wants[j], wants[i] })
		rng.Shuffle(len(have), func(i, j int) { have[i], have[j] = have[j], have[i] })
		if got := provision.Diff(wants, have); !reflect.DeepEqual(got, want) {
			t.Fatalf("got  %+v\nwant %+v", got, want)
		}
	})
}

func TestCostPerHourIsCostDifference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		wants, have := drawWants(t), drawHave(t)
		var now, then float64
		for _, o := range have {
			if o.TerminatedReason == "" {
				now += o.CostPerHour
			}
		}
		for _, w := range wants {
			then += w.CostPerHour
		}
		for _, o := range have { // objects that stay keep their price
			for _, w := range wants {
				if w.ID == o.ID && o.TerminatedReason == "" && o.CostPerHour != w.CostPerHour {
					return
				}
			}
		}
		if got := provision.Diff(wants, have).CostPerHour(); got != then-now {
			t.Fatalf("got %v, want %v - %v", got, then, now)
		}
	})
}

// want returns a desired object for the tables below.
func want(id string, kind provision.ObjectKind, region service.Region, spec string) provision.Desired {
	return provision.Desired{ID: id, Kind: kind, Region: region, SpecHash: spec}
}

func have(id string, kind provision.ObjectKind, region service.Region, spec, gone string) provision.Object {
	return provision.Object{ID: id, Kind: kind, Region: region, SpecHash: spec, TerminatedReason: gone}
}

func TestDiffStages(t *testing.T) {
	const b, r, c = provision.KindBalancer, provision.KindReplica, provision.KindController
	wants := []provision.Desired{
		want("controller", c, "", "new"),
		want("lb-eu-0", b, "local/eu", "new"), want("lb-us-0", b, "local/us", "new"),
		want("eu-0", r, "local/eu", "new"), want("us-0", r, "local/us", "new"), want("us-1", r, "local/us", "new"),
		want("us-2", r, "local/us", "same"), want("us-3", r, "local/us", "same"),
		want("firewall-us", provision.KindFirewall, "local/us", "new"), want("firewall-eu", provision.KindFirewall, "local/eu", "new"),
	}
	exists := []provision.Object{
		have("controller", c, "", "old", ""),
		have("lb-eu-0", b, "local/eu", "old", ""), have("lb-us-0", b, "local/us", "old", ""),
		have("eu-0", r, "local/eu", "old", ""), have("us-0", r, "local/us", "old", ""), have("us-1", r, "local/us", "old", ""),
		have("us-2", r, "local/us", "same", "killed"),
		have("asia-0", r, "local/asia", "old", ""),
		have("firewall-eu", provision.KindFirewall, "local/eu", "old", ""), have("firewall-asia", provision.KindFirewall, "local/asia", "old", ""),
	}
	want := []string{
		"0 repair firewall-eu (does not match its configuration)", "0 launch firewall-us (new)",
		"1 launch us-2 (killed)", "1 launch us-3 (new)",
		"2 replace eu-0 (configuration changed)",
		"3 replace us-0 (configuration changed)",
		"4 replace us-1 (configuration changed)",
		"5 replace lb-eu-0 (configuration changed)",
		"6 replace lb-us-0 (configuration changed)",
		"7 replace controller (configuration changed)",
		"8 terminate asia-0 (no longer desired)",
		"9 terminate firewall-asia (no longer desired)",
	}
	var got []string
	for _, c := range provision.Diff(wants, exists) {
		got = append(got, fmt.Sprintf("%d %s %s (%s)", c.Stage, c.Action, c.ID(), c.Reason))
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// Replicas that do not serve are replaced first, in all regions: otherwise a model may have none that serves.
func TestReplicasThatDoNotServeAreReplacedFirst(t *testing.T) {
	for _, tt := range []struct {
		name, ids, down, want string
	}{
		{"all serve", "us-0 us-1", "", "0 us-0 1 us-1 2 lb-us-0"},
		{"one does not", "us-0 us-1", "us-1", "0 us-1 1 us-0 2 lb-us-0"},
		{"in another region", "eu-0 us-0", "us-0", "0 us-0 1 eu-0 2 lb-us-0"},
		{"one in each region", "eu-0 eu-1 us-0 us-1", "eu-1 us-1", "0 eu-1 1 us-1 1 eu-0 2 us-0 3 lb-us-0"},
		{"only replicas have turns", "us-0 us-1", "lb-us-0", "0 us-0 1 us-1 2 lb-us-0"},
	} {
		wants := []provision.Desired{want("lb-us-0", provision.KindBalancer, "local/us", "new")}
		exists := []provision.Object{have("lb-us-0", provision.KindBalancer, "local/us", "old", "")}
		for id := range strings.FieldsSeq(tt.ids) {
			w, o := want(id, provision.KindReplica, service.Region("local/"+id[:2]), "new"), have(id, provision.KindReplica, service.Region("local/"+id[:2]), "old", "")
			w.Labels, o.Labels = map[string]string{"model": "m"}, map[string]string{"model": "m"}
			wants, exists = append(wants, w), append(exists, o)
		}
		changes := provision.Diff(wants, exists)
		changes.ReplaceFirst(exists, func(o provision.Object) bool { return slices.Contains(strings.Fields(tt.down), o.ID) })
		var got []string
		for _, c := range changes {
			got = append(got, fmt.Sprint(c.Stage, " ", c.ID()))
		}
		if text := strings.Join(got, " "); text != tt.want {
			t.Errorf("%s: got %s, want %s", tt.name, text, tt.want)
		}
	}
}

// The first replica of a model is replaced alone. A region's only one is replaced while those of other regions serve; regions
// with several replace one each at the same time.
func TestOnlyReplicasAreReplacedInTurn(t *testing.T) {
	model := func(name string, ids ...string) (wants []provision.Desired, exists []provision.Object) {
		for _, id := range ids {
			region := service.Region("local/" + id[:2])
			w, o := want(id, provision.KindReplica, region, "new"), have(id, provision.KindReplica, region, "old", "")
			w.Labels, o.Labels = map[string]string{"model": name}, map[string]string{"model": name}
			wants, exists = append(wants, w), append(exists, o)
		}
		return wants, exists
	}
	for _, tt := range []struct {
		name string
		ids  []string
		want string
	}{
		{"one in each region", []string{"as-0", "eu-0", "us-0"}, "0 as-0 1 eu-0 2 us-0"},
		{"several in each region", []string{"as-0", "as-1", "eu-0", "eu-1"}, "0 as-0 1 as-1 1 eu-0 2 eu-1"},
		{"several in one region", []string{"as-0", "as-1", "eu-0", "us-0"}, "0 as-0 1 as-1 1 eu-0 2 us-0"},
		{"one region", []string{"as-0"}, "0 as-0"},
	} {
		wants, exists := model("m", tt.ids...)
		var got []string
		for _, c := range provision.Diff(wants, exists) {
			got = append(got, fmt.Sprint(c.Stage, " ", c.ID()))
		}
		if text := strings.Join(got, " "); text != tt.want {
			t.Errorf("%s: got %s, want %s", tt.name, text, tt.want)
		}
	}
	wants, exists := model("m", "as-0", "eu-0")
	more, others := model("other", "eu-1", "us-1")
	dead := exists[0]
	dead.ID, dead.Handle, dead.TerminatedReason = "as-9", "dead", "killed"
	got := ""
	for _, c := range provision.Diff(append(wants, more...), append(append(exists, others...), dead)) {
		got += fmt.Sprintf("%d %s %s ", c.Stage, c.Action, c.ID())
	}
	if want := "0 replace as-0 1 replace eu-0 2 replace eu-1 3 replace us-1 4 terminate as-9 "; got != want {
		t.Errorf("two models: got %s, want %s", got, want)
	}
}

func TestDiffReasons(t *testing.T) {
	w := provision.Desired{ID: "us-0", Kind: provision.KindReplica, Region: "local/us", SpecHash: "s", BuildHash: "b", Address: "http://a"}
	same := provision.Object{ID: "us-0", Kind: provision.KindReplica, Region: "local/us", SpecHash: "s", BuildHash: "b", Address: "http://a"}
	tests := []struct {
		change func(*provision.Object, *provision.Desired)
		want   string
	}{
		{func(o *provision.Object, _ *provision.Desired) { o.SpecHash = "t" }, "configuration changed"},
		{func(o *provision.Object, w *provision.Desired) {
			o.SpecHash, o.ImmutableHash, w.ImmutableHash = "t", "f", "f"
		}, "reload: configuration changed"},
		{func(o *provision.Object, w *provision.Desired) {
			o.SpecHash, o.ImmutableHash, w.ImmutableHash = "t", "f", "g"
		}, "configuration changed"},
		{func(o *provision.Object, w *provision.Desired) { o.SpecHash, w.ImmutableHash = "t", "f" }, "configuration changed"},
		{func(o *provision.Object, w *provision.Desired) {
			o.SpecHash, o.ImmutableHash, w.ImmutableHash, o.BuildHash = "t", "f", "f", "c"
		}, "binary changed"},
		{func(o *provision.Object, _ *provision.Desired) { o.BuildHash = "c" }, "binary changed"},
		{func(o *provision.Object, w *provision.Desired) { o.BuildHash, w.BuildHash = "c", "" }, ""},
		{func(o *provision.Object, _ *provision.Desired) { o.Address = "http://b" }, "address changed"},
		{func(o *provision.Object, _ *provision.Desired) { o.Region = "local/eu" }, "kind or region changed"},
	}
	for _, tt := range tests {
		o, w := same, w
		tt.change(&o, &w)
		got := ""
		if changes := provision.Diff([]provision.Desired{w}, []provision.Object{o}); len(changes) == 1 {
			got = changes[0].Reason
		}
		if got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}

func TestDiffKeepsBetterOfDuplicateIDs(t *testing.T) {
	w := want("us-0", provision.KindReplica, "local/us", "s")
	good, old := objectOf(w, 2), objectOf(w, 1)
	old.SpecHash = "old"
	changes := provision.Diff([]provision.Desired{w}, []provision.Object{old, good})
	if len(changes) != 1 || changes[0].Action != provision.ActionTerminate || changes[0].Observed.Handle != "1" {
		t.Errorf("got %+v, want only the old one terminated", changes)
	}
}

// OnePerID keeps the objects that Diff keeps; without desired objects, one of each id.
func TestOnePerIDKeepsSameObjectAsDiff(t *testing.T) {
	w, other := want("us-0", provision.KindReplica, "local/us", "s"), want("us-1", provision.KindReplica, "local/us", "s")
	ended, old := objectOf(w, 1), objectOf(w, 2)
	ended.TerminatedReason, old.SpecHash = "was terminated", "old"
	wants, have := []provision.Desired{w, other}, []provision.Object{ended, old, objectOf(w, 4), objectOf(w, 3), objectOf(other, 5)}
	removed := map[string]bool{}
	for _, c := range provision.Diff(wants, have) {
		removed[c.Observed.Handle] = true
	}
	one := provision.OnePerID(wants, have)
	if len(one) != 2 || len(removed) != 3 || removed[one[0].Handle] || removed[one[1].Handle] {
		t.Errorf("OnePerID keeps %+v; Diff terminates %v", one, removed)
	}
	if one = provision.OnePerID(nil, have); len(one) != 2 || one[0].TerminatedReason != "" {
		t.Errorf("without desired objects OnePerID keeps %+v", one)
	}
}
