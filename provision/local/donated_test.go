package local

import (
	"errors"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"skyserve/internal/service"
)

// donatedAt is a donation that begins so many minutes after a fixed time.
func donatedAt(minutes int) service.Donation {
	since := time.Date(2026, 3, 1, 14, minutes, 0, 0, time.UTC)
	return service.Donation{Since: since, Until: since.Add(time.Hour)}
}

// us has 3 to 5 replicas of Big-Model.
func fiveReplicas(t *testing.T) (*service.Spec, Wanted) {
	t.Helper()
	spec := specOf(t, twoRegions)
	w, err := Wanted{}.WithCount(spec, "org/Big-Model", us, 5)
	if err != nil {
		t.Fatal(err)
	}
	return spec, w
}

func TestADonatedReplicaComesBackBeforeANewOneIsAdded(t *testing.T) {
	spec, w := fiveReplicas(t)
	var err error
	for i, id := range []string{"us-0", "us-3"} {
		if w, err = w.WithDonated(spec, nil, id, donatedAt(i)); err != nil {
			t.Fatal(err)
		}
	}
	if w, err = w.WithCount(spec, "org/Big-Model", us, 4); err != nil {
		t.Fatal(err)
	}
	if w.IsDonated("us-3") || !w.IsDonated("us-0") {
		t.Errorf("the one that was lent last comes back first: got %v", w.Donated)
	}
	if got := w.Numbers(spec, "org/Big-Model", us); !slices.Equal(got, []int{0, 1, 2, 3, 4}) {
		t.Errorf("got %v", got)
	}
	if w, err = w.WithCount(spec, "org/Big-Model", us, 3); err != nil {
		t.Fatal(err)
	}
	if got := w.Numbers(spec, "org/Big-Model", us); !slices.Equal(got, []int{0, 1, 2, 3}) || !w.IsDonated("us-0") {
		t.Errorf("the highest that serves goes, what is lent stays: got %v, %v", got, w.Donated)
	}
}

func TestTooFewAreNeverLeftByDonating(t *testing.T) {
	spec := specOf(t, twoRegions)
	var bounds *BoundsError
	if _, err := (Wanted{}).WithDonated(spec, nil, "us-0", donatedAt(0)); !errors.As(err, &bounds) || bounds.Count != 2 || bounds.Min != 3 {
		t.Errorf("got %v", err)
	}
	var unknown *NoReplicaError
	if _, err := (Wanted{}).WithDonated(spec, nil, "us-9", donatedAt(0)); !errors.As(err, &unknown) {
		t.Errorf("got %v", err)
	}
	attached := map[service.Region][]service.ReplicaConfig{spec.Regions[len(spec.Regions)-1].Name: {{ID: "paris-0"}}}
	var model *ModelUnknownError
	if _, err := (Wanted{}).WithDonated(spec, attached, "paris-0", donatedAt(0)); !errors.As(err, &model) {
		t.Errorf("got %v", err)
	}
}

func TestADonatedReplicaCanBeRemovedWhateverServes(t *testing.T) {
	spec := specOf(t, twoRegions)
	w, err := Wanted{}.WithCount(spec, "org/Big-Model", us, 4)
	if err == nil {
		w, err = w.WithDonated(spec, nil, "us-1", donatedAt(0))
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Without(spec, "us-2"); err == nil {
		t.Error("fewer than the least would serve")
	}
	if w, err = w.Without(spec, "us-1"); err != nil || len(w.Donated) != 0 {
		t.Errorf("got %v, %v", w, err)
	}
}

// Whatever is asked for in whatever order, what serves and what runs keep to the
// bounds, and whoever is donated exists.
func TestWantedKeepsToTheBoundsLaw(t *testing.T) {
	spec := specOf(t, twoRegions)
	rapid.Check(t, func(t *rapid.T) {
		var w Wanted
		for i := range rapid.IntRange(1, 20).Draw(t, "steps") {
			id := rapid.SampledFrom([]string{"us-0", "us-1", "us-2", "us-3", "us-4", "eu-0", "eu-1"}).Draw(t, "id")
			var next Wanted
			var err error
			switch rapid.IntRange(0, 4).Draw(t, "what") {
			case 0:
				next, err = w.WithDonated(spec, nil, id, donatedAt(i))
			case 1:
				next = w.Reclaimed(id)
			case 2:
				next, err = w.Without(spec, id)
			case 3:
				next, err = w.WithCount(spec, "org/Big-Model", us, rapid.IntRange(0, 6).Draw(t, "count"))
			case 4:
				next = w.WithDrained(id, rapid.Bool().Draw(t, "drained"))
			}
			if err == nil {
				w = next.tidy(spec, []string{})
			}
			for _, region := range []service.Region{us, eu} {
				ids := w.IDsOf(spec, "org/Big-Model", region)
				b := spec.BoundsFor("org/Big-Model", region)
				if serve := len(w.Serving(ids)); serve < b.Min || len(ids) > b.Max {
					t.Fatalf("%s: %d of %d serve, want %d to %d", region, serve, len(ids), b.Min, b.Max)
				}
			}
			for _, d := range w.Donated {
				if !slices.Contains(w.IDs(spec), d.ID) {
					t.Fatalf("%s is donated and does not exist", d.ID)
				}
			}
		}
	})
}
