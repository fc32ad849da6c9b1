package plan

import "math"

// climb raises the bound of the blocks from the prices of p, which it moves, by
// up to n steps of a bundle.
func (c *coupling) climb(p *point, in box, n int) {
	right := make([]float64, len(c.rows))
	for r := range right {
		right[r] = c.rows[r].right
	}
	at, ok := c.blockTangents(p, in)
	if !ok {
		return
	}
	b := c.newBundle(p.y, right, at)
	trial := c.newPoint()
	b.run(n, func(y []float64) (tangents, bool) {
		copy(trial.y, y)
		at, ok := c.blockTangents(trial, in)
		if ok && trial.value > p.value {
			p.copy(trial)
		}
		return at, ok
	})
}

// blockTangents relaxes the blocks at the point's prices, model by model; ok is
// false when effort ran out or a block has no counts.
func (c *coupling) blockTangents(p *point, in box) (at tangents, ok bool) {
	if !c.relax(p, in) || math.IsInf(p.value, 1) {
		return tangents{}, false
	}
	for i := range c.models {
		worth, use := 0.0, make([]float64, len(c.rows))
		for b := i * c.regions; b < (i+1)*c.regions; b++ {
			worth += p.reduced[b]
			c.price(b, p.y, in)
			c.count(b, p.x[b*c.gpus:(b+1)*c.gpus], use)
		}
		at.worth, at.use = append(at.worth, worth), append(at.use, use)
	}
	return at, true
}

// wholeClimb raises the bound of the models, each with its coverage kept to the
// unit, from the prices of p. It moves p to the best prices, with what models
// carry priced as before, and leaves the models' bounds there in base.
type wholeClimb struct {
	*coupling
	p     *point
	in    box
	b     *bundle
	ended bool
}

func (c *coupling) newWholeClimb(p *point, in box) *wholeClimb {
	w := &wholeClimb{coupling: c, p: p, in: in}
	right := make([]float64, len(c.rows))
	for r, row := range c.rows {
		if !row.own() {
			right[r] = row.right
		}
	}
	at, ok := c.wholeTangents(p, in)
	if w.ended = !ok; ok {
		w.b = c.newBundle(p.y, right, at)
		c.raise(w.b.value)
		copy(c.base, at.worth)
	}
	return w
}

// run makes up to n steps of a bundle.
func (w *wholeClimb) run(n int) {
	if w.ended {
		return
	}
	w.ended = !w.b.run(n, func(y []float64) (tangents, bool) {
		trial := *w.p
		trial.y = y
		at, ok := w.wholeTangents(&trial, w.in)
		if ok {
			w.raise(w.b.sum(y, at))
		}
		return at, ok && !w.done(w.bound)
	})
	copy(w.p.y, w.b.centre)
	copy(w.base, w.b.worth)
	w.relax(w.p, w.in)
}

// wholeTangents bounds every model at the point's prices; ok is false when effort
// ran out. The use of counts that cost a little more than the bound proves
// nothing, but leads the same way.
func (c *coupling) wholeTangents(p *point, in box) (at tangents, ok bool) {
	for i := range c.models {
		r := c.boundModel(i, p, in, modelEffort)
		if c.work.spent() || r.x == nil {
			return tangents{}, false
		}
		use := make([]float64, len(c.rows))
		for j, x := range r.x {
			c.count(i*c.regions+j, x, use)
		}
		for row := range use {
			if c.rows[row].own() {
				use[row] = 0
			}
		}
		at.worth, at.use = append(at.worth, r.bound), append(at.use, use)
	}
	return at, true
}
