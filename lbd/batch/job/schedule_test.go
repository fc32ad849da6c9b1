package job

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// Tenants are served equally whatever the number of their batches, and so are the keys of a tenant.
func TestTenantsShareEqually(t *testing.T) {
	var s Scheduler
	var all []Candidate
	for i, tenant := range []string{"big", "small", "small", "small", "small"} {
		all = append(all, Candidate{ID: fmt.Sprint(i), Tenant: tenant, Key: fmt.Sprint("k", i%2), Created: start, Window: time.Hour})
	}
	served := map[string]int{}
	for range 400 {
		c := all[s.Next(all, start)]
		s.CountServed(c, 10)
		served[c.Tenant]++
		served[c.Tenant+c.Key]++
	}
	if served["big"] != 200 || served["small"] != 200 || served["smallk0"] != 100 || served["smallk1"] != 100 {
		t.Errorf("%v", served)
	}
}

// A tenant that returns gets its share from then on, and no credit for its absence.
func TestAbsenceEarnsNoCredit(t *testing.T) {
	var s Scheduler
	a, b := Candidate{ID: "a", Tenant: "a", Created: start, Window: time.Hour}, Candidate{ID: "b", Tenant: "b", Created: start, Window: time.Hour}
	for range 100 {
		s.CountServed([]Candidate{a}[s.Next([]Candidate{a}, start)], 1)
	}
	inRow := 0
	for range 10 {
		both := []Candidate{a, b}
		c := both[s.Next(both, start)]
		s.CountServed(c, 1)
		if c.ID == "b" {
			inRow++
		}
	}
	if inRow != 5 {
		t.Errorf("%d of 10 for the tenant that returned", inRow)
	}
}

// The choice equals that of a twin which sorts all candidates, and does not depend on their order.
func TestNextEqualsSortedTwin(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 2))
		var s Scheduler
		for step := range 30 {
			now := start.Add(time.Duration(step) * time.Minute)
			var all []Candidate
			for i := range 1 + rng.IntN(6) {
				all = append(all, Candidate{
					ID: fmt.Sprint(i), Tenant: fmt.Sprint("t", rng.IntN(3)), Key: fmt.Sprint("k", rng.IntN(2)),
					Created: start, Window: time.Duration(1+rng.IntN(200)) * time.Minute,
				})
			}
			got := all[s.Next(all, now)]
			rank := func(c Candidate) string {
				if !now.Before(c.Created.Add(time.Duration(UrgentShare * float64(c.Window)))) {
					return fmt.Sprintf("0 %020d %s", c.Deadline().Unix(), c.ID)
				}
				return fmt.Sprintf("1 %012.3f %s %012.3f %s %020d %s", s.tenants.of(c.Tenant), c.Tenant, s.keys.of(keyOf(&c)), c.Key, c.Deadline().Unix(), c.ID)
			}
			want := slices.MinFunc(all, func(a, b Candidate) int {
				if rank(a) < rank(b) {
					return -1
				}
				return 1
			})
			if got != want {
				t.Fatalf("seed %d: %+v, want %+v", seed, got, want)
			}
			rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			if again := all[s.Next(all, now)]; again != got {
				t.Fatalf("seed %d: another order gives %+v, not %+v", seed, again, got)
			}
			s.CountServed(got, 1+rng.IntN(64))
		}
	}
}

func TestPrefixesAreGrouped(t *testing.T) {
	lines := []Line{{Number: 1, Model: "b", Body: []byte("x")}, {Number: 2, Model: "a", Body: []byte("y2")}, {Number: 3, Model: "a", Body: []byte("x")}, {Number: 4, Model: "a", Body: []byte("y1")}}
	GroupPrefixes(lines)
	var got []int
	for _, l := range lines {
		got = append(got, l.Number)
	}
	if !slices.Equal(got, []int{3, 4, 2, 1}) {
		t.Errorf("%v", got)
	}
}
