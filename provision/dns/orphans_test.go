package dns

import (
	"slices"
	"testing"
	"testing/synctest"
)

// Names returns all names of services in a hosted zone, and no records of others.
func TestNamesOfAZone(t *testing.T) {
	setAccount(t)
	synctest.Test(t, func(t *testing.T) {
		a := newAccount()
		if names, err := a.client(t).Names(t.Context(), chat().Zone); err != nil || len(names) > 0 {
			t.Errorf("at first: %+v (%v)", names, err)
		}
		first, other := chat(record("lb-0", "aws/us-east-1", "198.51.100.1")), chat(record("lb-1", "gcp/us-east4", "198.51.100.2"))
		other.Name, other.Service, other.Owner = "api."+first.Zone, "api", "them"
		a.set(t, first)
		a.set(t, other)
		names, err := a.client(t).Names(t.Context(), first.Zone)
		var got []string
		for _, n := range names {
			got = append(got, n.Name+" of "+n.Service+" of "+n.Owner)
		}
		if want := []string{"api." + first.Zone + " of api of them", first.Name + " of " + first.Service + " of " + first.Owner}; err != nil || !slices.Equal(got, want) {
			t.Errorf("got %q (%v), want %q", got, err, want)
		}
		for _, n := range names {
			a.set(t, n)
		}
		if names, err := a.client(t).Names(t.Context(), first.Zone); err != nil || len(names) > 0 {
			t.Errorf("after they were removed: %+v (%v)", names, err)
		}
		if _, err := a.client(t).Names(t.Context(), "nowhere.example"); err == nil {
			t.Error("a zone that is not there: no error")
		}
	})
}
