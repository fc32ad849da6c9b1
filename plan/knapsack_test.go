package plan

import (
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// bruteKnapsack tries every choice of picks: the least sum of excess and priced
// rest, +Inf where no choice keeps the capacities.
func bruteKnapsack(k *knapsack, i int, used []int) float64 {
	if i == len(k.items) {
		var sum float64
		for t, c := range k.caps {
			sum += c.price * float64(c.right-used[t])
		}
		return sum
	}
	best := math.Inf(1)
pick:
	for _, p := range k.items[i] {
		next := make([]int, len(used))
		for t := range k.caps {
			if next[t] = used[t] + k.caps[t].of(&p.use); next[t] > k.caps[t].right {
				continue pick
			}
		}
		best = math.Min(best, p.excess+bruteKnapsack(k, i+1, next))
	}
	return best
}

// A knapsack finds what trying everything finds, whatever bits its capacities
// take, and says nothing lies within a distance only where nothing does. One
// knapsack serves many problems.
func TestKnapsackEqualsBruteForce(t *testing.T) {
	k := knapsack{work: &effort{}}
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 13))
		items, caps := 1+r.IntN(5), 1+r.IntN(8)
		k.work.left = 1_000_000
		k.begin(items)
		fields := make([]int, caps)
		for c := range fields {
			if fields[c] = c; !k.hold(1+r.IntN([]int{3, 20, 4000}[r.IntN(3)]), float64(r.IntN(3))/4) {
				t.Fatalf("no room for capacity %d", c)
			}
		}
		for i := range items {
			for n := range 1 + r.IntN(5) {
				counts := make([]int, caps)
				for c := range counts {
					counts[c] = r.IntN(1 + k.caps[c].right/2)
				}
				use, ok := k.use(counts, fields)
				if !ok {
					t.Fatalf("%v refused", counts)
				}
				k.items[i] = append(k.items[i], pick{r.Float64(), use, n})
			}
		}
		want := bruteKnapsack(&k, 0, make([]int, caps))
		d := rapid.SampledFrom([]float64{0.5, 2, 1e9}).Draw(t, "d")
		picked, least, done := k.solve(d)
		if !done {
			t.Fatal("not done")
		}
		if found := picked != nil; found != (want <= d) || math.Abs(least-math.Min(want, d)) > 1e-6*(1+least) {
			t.Fatalf("found %v %g within %g, brute force %g", found, least, d, want)
		}
		if picked == nil {
			return
		}
		sum, used := 0.0, make([]int, caps)
		for i, n := range picked {
			sum += k.items[i][n].excess
			for c := range used {
				used[c] += k.caps[c].of(&k.items[i][n].use)
			}
		}
		for c := range used {
			if used[c] > k.caps[c].right {
				t.Fatalf("capacity %d: %d of %d", c, used[c], k.caps[c].right)
			}
			sum += k.caps[c].price * float64(k.caps[c].right-used[c])
		}
		if math.Abs(sum-least) > 1e-6*(1+least) {
			t.Fatalf("the picks cost %g, not %g", sum, least)
		}
	})
}

// What a knapsack cannot hold it refuses.
func TestKnapsackRefuses(t *testing.T) {
	k := knapsack{work: &effort{left: 1000}}
	k.begin(1)
	if k.hold(mostCapacity+1, 0) {
		t.Error("too large a capacity held")
	}
	held := 0
	for k.hold(mostCapacity, 0) {
		held++
	}
	if held < len(packedUse{}) {
		t.Errorf("room for %d capacities", held)
	}
	if _, ok := k.use([]int{mostCapacity + 1}, []int{0}); ok {
		t.Error("more used than held")
	}
}
