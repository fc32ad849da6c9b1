package plan

import (
	"math"
	"slices"
)

// bundle raises a bound that is a sum of concave parts, one for each model, less
// the prices of the rows times what they allow: the proximal bundle method
// (Lemarechal, Kiwiel) with a cutting plane model of every part. From the best
// prices so far, the centre, it goes to where the models promise most, less the
// square of the way there over twice the reach.
type bundle struct {
	c     *coupling
	right []float64 // by row, what it allows; 0 where the parts keep the row
	parts [][]plane // by model
	worth []float64 // by model: the part at the centre

	centre []float64 // prices
	value  float64   // the bound there
	reach  float64
	slope  []float64 // what the mean of the planes uses above what the rows allow
	trial  []float64 // prices to go to
	way    []float64 // from the centre
}

// plane bounds a part from above: it uses so much of each row, and lies above
// the part by lift at the centre.
type plane struct {
	use          []float64
	lift, weight float64 // weights of a part sum to 1
}

// tangents are the parts at some prices: what they are worth, and what they use
// of each row there.
type tangents struct {
	worth []float64
	use   [][]float64
}

// The course of a bundle.
const (
	firstReach  = 0.003
	mostReach   = 0.1
	planes      = 12   // of a part
	planeSweeps = 30   // over all parts, to find the weights
	planeSlack  = 1e-6 // of the bound: what the weights may be off
	goodStep    = 0.1  // share of what was promised at which the centre moves
	rightStep   = 0.5  // and at which the reach grows
	nullSteps   = 8    // without a move before the reach shrinks
)

// newBundle starts from the prices y, where the parts are as given.
func (c *coupling) newBundle(y, right []float64, at tangents) *bundle {
	n := len(y)
	b := &bundle{
		c: c, right: right, centre: slices.Clone(y), worth: at.worth, reach: firstReach,
		slope: make([]float64, n), trial: make([]float64, n), way: make([]float64, n),
	}
	for _, use := range at.use {
		b.parts = append(b.parts, []plane{{use: use, weight: 1}})
	}
	b.value = b.sum(b.centre, at)
	return b
}

// sum is the bound at prices y.
func (b *bundle) sum(y []float64, at tangents) float64 {
	sum := -product(b.right, y)
	for _, v := range at.worth {
		sum += v
	}
	return sum
}

// product is the inner product, summed in order.
func product(a, b []float64) float64 {
	var sum float64
	for r, v := range a {
		sum += v * b[r]
	}
	return sum
}

// run makes up to n steps, each of which asks for the parts at the trial prices.
// It reports whether more may be gained: not where nothing is promised, or ask
// said that effort ran out.
func (b *bundle) run(n int, ask func(y []float64) (tangents, bool)) bool {
	nulls := 0
	for range n {
		b.weigh()
		promised := b.promised()
		for promised < planeSlack*math.Abs(b.value) && b.reach < mostReach {
			b.reach = math.Min(4*b.reach, mostReach)
			b.weigh()
			promised = b.promised()
		}
		if promised < planeSlack*math.Abs(b.value) {
			return false
		}
		at, ok := ask(b.trial)
		if !ok {
			return false
		}
		gained := b.sum(b.trial, at) - b.value
		b.learn(at, gained > goodStep*promised)
		switch {
		case gained > rightStep*promised:
			b.reach, nulls = math.Min(2*b.reach, mostReach), 0
		case gained > goodStep*promised:
			nulls = 0
		default:
			if nulls++; gained < -promised && nulls > 1 || nulls > nullSteps {
				b.reach, nulls = b.reach/2, 0
			}
		}
	}
	return true
}

// promised is how much higher than at the centre the models are at the trial.
func (b *bundle) promised() float64 {
	sum := -product(b.right, b.way)
	for _, part := range b.parts {
		least := math.Inf(1)
		for n := range part {
			least = math.Min(least, part[n].lift+product(part[n].use, b.way))
		}
		sum += least
	}
	return sum
}

// learn adds the planes found at the trial prices, and makes these the centre if
// it is to move.
func (b *bundle) learn(at tangents, move bool) {
	for i := range b.parts {
		part := b.drop(b.parts[i])
		lift := 0.0
		if move {
			for n := range part {
				part[n].lift = math.Max(0, part[n].lift+product(part[n].use, b.way)-(at.worth[i]-b.worth[i]))
			}
		} else {
			lift = math.Max(0, at.worth[i]-product(at.use[i], b.way)-b.worth[i])
		}
		b.parts[i] = append(part, plane{use: at.use[i], lift: lift})
	}
	if move {
		b.value = b.sum(b.trial, at)
		copy(b.centre, b.trial)
		b.worth = at.worth
	}
}

// drop leaves out the planes of least weight where there are many.
func (b *bundle) drop(part []plane) []plane {
	for len(part) >= planes {
		low, all := 0, 0.0
		for n := range part {
			if p := &part[n]; p.weight < part[low].weight || p.weight == part[low].weight && p.lift > part[low].lift {
				low = n
			}
		}
		part = slices.Delete(part, low, low+1)
		for n := range part {
			all += part[n].weight
		}
		for n := range part {
			part[n].weight /= all
		}
	}
	return part
}

// weigh finds the weights of the planes, and with them the trial prices: the
// dual of the step, a quadratic programme over one simplex for each part, by
// moving weight between the two planes of a part that differ most.
func (b *bundle) weigh() {
	for r := range b.slope {
		b.slope[r] = -b.right[r]
	}
	for _, part := range b.parts {
		for n := range part {
			for r, u := range part[n].use {
				b.slope[r] += part[n].weight * u
			}
		}
	}
	b.place()
	tolerance := planeSlack * math.Abs(b.value) / float64(len(b.parts))
	for range planeSweeps {
		settled := true
		for _, part := range b.parts {
			settled = b.shift(part, tolerance) && settled
		}
		if settled {
			return
		}
	}
}

// place sets the trial prices that the slope leads to.
func (b *bundle) place() {
	for r, y := range b.centre {
		b.trial[r] = math.Max(0, y+b.reach*b.slope[r])
		b.way[r] = b.trial[r] - y
	}
}

// shift moves weight from the highest plane of a part that has any to the lowest
// one, a few times, and reports whether there was nothing to move.
func (b *bundle) shift(part []plane, tolerance float64) bool {
	for moves := range 3 {
		b.c.work.spend((1 + len(part)) * len(b.way) / 16)
		low, high, least, most := -1, -1, math.Inf(1), math.Inf(-1)
		for n := range part {
			h := part[n].lift + product(part[n].use, b.way)
			if h < least {
				low, least = n, h
			}
			if part[n].weight > 0 && h > most {
				high, most = n, h
			}
		}
		if most-least < tolerance {
			return moves == 0
		}
		b.between(&part[low], &part[high], most-least)
	}
	return false
}

// between moves as much weight as levels the two planes, as far as there is any.
func (b *bundle) between(low, high *plane, apart float64) {
	var bend float64
	for r, y := range b.trial {
		if y > 0 || b.slope[r] > 0 {
			d := low.use[r] - high.use[r]
			bend += b.reach * d * d
		}
	}
	moved := high.weight
	if bend > 0 {
		moved = math.Min(moved, apart/bend)
	}
	high.weight -= moved
	low.weight += moved
	for r := range b.slope {
		b.slope[r] += moved * (low.use[r] - high.use[r])
	}
	b.place()
}
