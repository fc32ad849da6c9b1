package tui

import (
	"strings"
	"testing"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// The price of a machine takes precedence over the price of its GPU in its region.
func TestReplicaPriceOverridesRegionPrice(t *testing.T) {
	region := &telemetry.RegionSnapshot{Name: "aws/us-east-1"}
	p := pricesOf(&telemetry.Snapshot{Prices: []telemetry.Price{{Region: region.Name, GPU: "L4", USDPerHour: 0.8}}})
	spot := 0.35
	for _, tt := range []struct {
		name    string
		replica telemetry.ReplicaSnapshot
		want    string
	}{
		{"on spot", telemetry.ReplicaSnapshot{GPU: "L4", USDPerHour: &spot}, "0.35"},
		{"without a price of its own", telemetry.ReplicaSnapshot{GPU: "L4"}, "0.80"},
		{"on something else", telemetry.ReplicaSnapshot{GPU: "H100"}, unknown},
	} {
		if got, _ := p.cell(row{region: region, replica: &tt.replica}); got != tt.want {
			t.Errorf("one %s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

// A capital letter that has another meaning, such as G for the last row, would not sort.
func TestSortLettersHaveNoOtherMeaning(t *testing.T) {
	for v, name := range viewNames {
		s := &deskIn(t, 200, 60, normal(), viewKeys[v]).model.screen
		meanings := map[string]string{}
		for _, g := range s.keys.Groups() {
			for _, k := range g.Keys {
				for _, letter := range k.Keys() {
					meanings[letter] = k.Help().Desc
				}
			}
		}
		for _, l := range s.pane().sortHelp() {
			if other, taken := meanings[l[0]]; taken {
				t.Errorf("view %s: %s sorts by %s, and means %s", name, l[0], l[1], other)
			}
			meanings[l[0]] = l[1]
		}
	}
}

// ERR% compares with the earlier counts of the same attachment only: those of an earlier one began at another 0, also if
// they are lower.
func TestErrorShareComparesWithinAttachment(t *testing.T) {
	now := region("local/us", telemetry.ReplicaSnapshot{ID: "us-0", Sent: 20, Failed: 8, Attachment: 7})
	for attachment, want := range map[uint64]float64{7: 0.8, 6: 0.4} {
		earlier := region("local/us", telemetry.ReplicaSnapshot{ID: "us-0", Sent: 10, Attachment: attachment})
		view := table{base: &telemetry.Snapshot{Regions: []telemetry.RegionSnapshot{earlier}}}
		if got := view.errorShare(row{region: &now, replica: &now.Replicas[0]}); *got != want {
			t.Errorf("with attachment %d before: got %v, want %v", attachment, *got, want)
		}
	}
}

// The second and later frames of top -n mark what has changed since the frame before.
func TestPrintedFramesMarkChanges(t *testing.T) {
	before, after := ownMachines(), ownMachines()
	after.Regions[0].Replicas[0].State = service.StateNotReady
	theme := mustTheme(NewTheme(ThemePlain, true))
	if frame := Render(after, before, 0, 0, theme); !strings.Contains(frame, "NOT_READY*") {
		t.Errorf("the changed state has no mark:\n%s", frame)
	}
	if frame := Render(after, nil, 0, 0, theme); strings.Contains(frame, "NOT_READY*") {
		t.Errorf("a state without a frame before has a mark:\n%s", frame)
	}
}

// A replica is known by its id: other columns are omitted before it is cut. Rows with cut ids would look the same.
func TestReplicaIDsAreWhole(t *testing.T) {
	var replicas []telemetry.ReplicaSnapshot
	for _, id := range []string{"us-east-1-llama-70b-0", "us-east-1-llama-70b-1", "us-east-1-0"} {
		r := replica(id, "H100", 0.5)
		r.Model, r.Version = id[:len(id)-2], "0.33.0"
		replicas = append(replicas, r)
	}
	for _, width := range []int{60, 80, 120} {
		view := table{width: width, height: 9}
		whole := region("aws/us-east-1", replicas...)
		view.setRegions([]*telemetry.RegionSnapshot{&whole}, "")
		theme := mustTheme(NewTheme(ThemePlain, false))
		lines := view.Render(&theme)
		all := strings.Join(lines, "\n")
		for _, r := range replicas {
			if !strings.Contains(all, " "+r.ID+" ") {
				t.Errorf("width %d: %s is not in\n%s", width, r.ID, all)
			}
		}
		if !strings.Contains(lines[0], "OUTST") || !strings.Contains(lines[0], "KV") {
			t.Errorf("width %d: columns %s", width, lines[0])
		}
	}
}

// wide is a service whose regions and models have long names that differ at their end.
func wide() *telemetry.Snapshot {
	s := &telemetry.Snapshot{At: noon, Service: "chat"}
	names := []string{"gcp/northamerica-northeast1", "gcp/northamerica-northeast2", "gcp/southamerica-east1"}
	for i, name := range names {
		var rs []telemetry.ReplicaSnapshot
		for k, model := range []string{"meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-70B-Instruct"} {
			r := replica(name[4:]+[]string{"-0", "-70b-0"}[k], "L4", 0.5)
			r.Model = model
			rs = append(rs, r)
		}
		r := region(name, rs...)
		r.ForwardedTo = []telemetry.Flow{{Region: service.Region(names[(i+1)%3]), Requests: 4321}}
		s.Regions = append(s.Regions, r)
	}
	return s
}

// Rows of a region and a model that look the same cannot be told apart.
func TestRowsOfModelsDiffer(t *testing.T) {
	for _, width := range []int{60, 80, 100, 120} {
		frame := deskIn(t, width, 30, wide(), "$").frame()
		for _, want := range []string{"northamerica-northeast1 ", "northamerica-northeast2 ", "Llama-3.1-8", "Llama-3.1-7"} {
			if !strings.Contains(frame, want) {
				t.Errorf("width %d: %s is not in\n%s", width, want, frame)
			}
		}
	}
}

// The models of replicas differ where they are shown.
func TestModelsOfReplicasDiffer(t *testing.T) {
	for _, width := range []int{80, 90, 100, 105, 110, 115, 120, 130, 150} {
		frame := deskIn(t, width, 30, wide(), "2").frame()
		if strings.Contains(frame, "MODEL") && (!strings.Contains(frame, " Llama-3.1-8") || !strings.Contains(frame, " Llama-3.1-7")) {
			t.Errorf("width %d:\n%s", width, frame)
		}
	}
}

// The names of two regions leave room for the counts of the requests between them.
func TestForwardedCountsAreWhole(t *testing.T) {
	for _, width := range []int{60, 80, 100, 120, 150} {
		if frame := deskIn(t, width, 40, wide()).frame(); strings.Count(frame, " 4321") < 3 || !strings.Contains(frame, "TOTAL") {
			t.Errorf("width %d: counts are missing in\n%s", width, frame)
		}
	}
}
