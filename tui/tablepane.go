package tui

import (
	"fmt"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// prices maps region and GPU to the price of a replica in USD per hour; nil if unknown.
type prices map[priceKey]float64

type priceKey struct {
	region service.Region
	gpu    string
}

// pricesOf returns the prices in a snapshot.
func pricesOf(s *telemetry.Snapshot) prices {
	if len(s.Prices) == 0 {
		return nil
	}
	p := prices{}
	for _, price := range s.Prices {
		p[priceKey{price.Region, price.GPU}] = price.USDPerHour
	}
	return p
}

// priceOf returns the price of a replica; known is false if it was not reported, and after its machine was terminated.
func (p prices) priceOf(r row) (usd float64, known bool) {
	if r.replica.Terminated {
		return 0, false
	}
	if usd := r.replica.USDPerHour; usd != nil {
		return *usd, true
	}
	usd, known = p[priceKey{r.region.Name, r.replica.GPU}]
	return usd, known
}

// cell returns the price as the table shows it.
func (p prices) cell(r row) (string, paint) {
	usd, known := p.priceOf(r)
	if !known {
		return unknown, paint{}
	}
	return fmt.Sprintf("%.2f", usd), paint{}
}

// sortLetters are the capital letters of the sort keys.
var sortLetters = [sortKeys]string{"N", "S", "M", "U", "P", "R", "O", "K", "H", "T", "C", "A"}

// selection returns the id of the selected replica.
func (t *table) selection() (id string, ok bool) {
	r, ok := t.current()
	if !ok {
		return "", false
	}
	return r.replica.ID, true
}

// selectID selects the replica of that id; none if it is not listed.
func (t *table) selectID(id string) {
	t.unselect()
	for i, r := range t.rows {
		if r.replica.ID == id {
			t.selectRow(i)
		}
	}
}

func (t *table) filterText() string     { return t.filter }
func (t *table) setFilter(text string)  { t.filter = text }
func (t *table) counts() (shown, n int) { return len(t.rows), t.all }
func (t *table) noun() string           { return "replica" }

// toggleMark marks or unmarks the selected replica.
func (t *table) toggleMark() {
	if r, ok := t.current(); ok {
		t.marks.toggle(r.replica.ID)
	}
}

// targetIDs returns the ids of the marked replicas, or of the selected one if none is marked.
func (t *table) targetIDs() []string {
	id, ok := t.selection()
	return t.marks.targetIDs(id, ok)
}

func (t *table) sortNext() { t.order = sortOrder{key: (t.order.key + 1) % sortKeys} }

// sortBy sorts by the key of that letter; false if there is none.
func (t *table) sortBy(letter string) bool {
	for i, l := range sortLetters {
		if l == letter {
			t.order = t.order.pick(sortKey(i))
			return true
		}
	}
	return false
}

// sortHelp returns the letters and names of the sort keys.
func (t *table) sortHelp() [][2]string {
	letters := make([][2]string, sortKeys)
	for i, l := range sortLetters {
		letters[i] = [2]string{l, sortWords[i]}
	}
	return letters
}

// click handles a click on a line of the pane, like list.click.
func (t *table) click(x, y int) (again bool) {
	if y == 0 {
		t.clickTitle(x)
		return false
	}
	at := t.offset + y - 1
	if at >= len(t.lines) || t.lines[at].row < 0 {
		return false
	}
	again = t.lines[at].row == t.selected
	t.selectRow(t.lines[at].row)
	return again
}

// clickTitle sorts by the column whose title was clicked.
func (t *table) clickTitle(x int) {
	th := mustTheme(NewTheme(ThemePlain, false))
	g := fitGrid(t.columns(&th), max(t.width-margin, 1))
	column := g.at(x - margin)
	for key, c := range sortColumns {
		if c == column {
			t.order = t.order.pick(sortKey(key))
		}
	}
}

// previousOf returns a replica in the previous snapshot; nil if it was not in it.
func (t *table) previousOf(r row) *telemetry.ReplicaSnapshot { return replicaIn(t.previous, r) }

// replicaIn returns a replica in an earlier snapshot; nil if it was not in it. Replicas usually keep their index
// from one snapshot to the next, so that index is tried first.
func replicaIn(earlier *telemetry.Snapshot, r row) *telemetry.ReplicaSnapshot {
	was := findRegion(earlier, r.region.Name)
	if was == nil {
		return nil
	}
	if at := r.index; at < len(was.Replicas) && was.Replicas[at].ID == r.replica.ID {
		return &was.Replicas[at]
	}
	for i := range was.Replicas {
		if was.Replicas[i].ID == r.replica.ID {
			return &was.Replicas[i]
		}
	}
	return nil
}

// stateTrend returns the symbol of a changed state.
func (t *table) stateTrend(th *Theme, r row) string {
	if was := t.previousOf(r); t.previous != nil && (was == nil || was.State != r.replica.State) {
		return th.glyphs.changed
	}
	return ""
}

// pendingTrend returns the sign of the change of a replica's pending requests.
func pendingTrend(th *Theme, r, was *telemetry.ReplicaSnapshot) string {
	if was == nil || r.Pending == nil || was.Pending == nil {
		return th.trend(0)
	}
	return th.trend(*r.Pending - *was.Pending)
}

// outstandingTrend returns the sign of the change of a replica's outstanding requests.
func outstandingTrend(th *Theme, r, was *telemetry.ReplicaSnapshot) string {
	if was == nil {
		return th.trend(0)
	}
	return th.trend(r.Outstanding - was.Outstanding)
}

// trend returns the sign of a change, or a space.
func (t *Theme) trend(change int) string {
	switch {
	case change > 0:
		return t.glyphs.up
	case change < 0:
		return t.glyphs.down
	}
	return " "
}
