package plan

import "slices"

// tighten narrows a node's bounds to the counts that a solution cheaper than
// the best known can have. The bound of the node is a sum over models and, in
// each, over regions; counts whose region's reduced cost lies further above its
// least than the best cost lies above the bound are ruled out. False means that
// no counts are left.
func (cs *capSearch) tighten(n *node, rel relaxed) bool {
	if cs.best == nil {
		return true
	}
	room := cs.bestCost - rel.value + slackOf(cs.bestCost)
	for i := range cs.p.Models {
		m := cs.caseAt(n, i, n.price)
		dual, _ := m.maximise(&cs.work)
		if dual.x == nil {
			return true
		}
		if !cs.tightenModel(n, i, m, dual, room+rel.parts[i]-dual.value) {
			return false
		}
	}
	return true
}

// tightenModel narrows model i's bounds to counts within d of its regions'
// least reduced costs.
func (cs *capSearch) tightenModel(n *node, i int, m *modelCase, dual dualPoint, d float64) bool {
	byRegion := map[int][]pattern{}
	for r, row := range cs.rows {
		patterns, seen := byRegion[row.region]
		if !seen {
			patterns = m.patterns(row.region, dual, d, &cs.work)
			byRegion[row.region] = patterns
		}
		if cs.work.spent() || len(patterns) > maxPatterns {
			return true
		}
		if len(patterns) == 0 {
			return false
		}
		counts := make([]int, len(patterns))
		for at, p := range patterns {
			counts[at] = p.x[row.gpu]
		}
		n.lo[i][r] = max(n.lo[i][r], slices.Min(counts))
		n.hi[i][r] = min(n.hi[i][r], slices.Max(counts))
	}
	return true
}
