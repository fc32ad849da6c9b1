package forecast

import (
	"fmt"
	"math"
)

// Bounds of the order search, those of R's auto.arima (Hyndman and Khandakar 2008).
const (
	maxTerms         = 5
	maxSeasonalTerms = 2
	maxModels        = 94
	// minRoot is the minimum distance of a model's roots from the origin. A root closer to the
	// unit circle means one difference too few or too many.
	minRoot = 1.01
	// longSeason is the longest season whose models are compared by exact likelihood; those with a
	// longer one are compared by conditional likelihood.
	longSeason = 30
)

// AutoARIMA selects an ARIMA model for a series by AICc and fits it. The differences follow from
// the KPSS test and, with a season, from the season's strength. The other orders come from the
// stepwise search of Hyndman and Khandakar (2008), the one of R's auto.arima, with each model
// fitted by exact maximum likelihood; models with a season longer than 30 steps are compared by
// conditional likelihood. season is in steps, 0 for none; differences is the maximum number of
// differences, seasonal ones included; x are regressors as in ARIMASpec. A constant series yields a model
// without terms. It fails when no value is known or when regressors do not fit.
func AutoARIMA(y []float64, season, differences int, x [][]float64) (*ARIMA, error) {
	s := &orderSearch{y: y, x: x, season: season, differences: differences}
	if err := s.difference(); err != nil {
		return nil, fmt.Errorf("choosing an ARIMA model: %w", err)
	}
	m, err := s.searchOrders()
	if err != nil {
		return nil, fmt.Errorf("choosing an ARIMA model: %w", err)
	}
	return m, nil
}

// searchPoint is one point of the order search: the orders of a model, and whether it has a constant. In moves it is the
// difference between two points.
type searchPoint struct {
	p, q, sp, sq int
	constant     bool
}

// orderSearch is the stepwise search for the orders with the lowest AICc.
type orderSearch struct {
	y      []float64
	x      [][]float64
	season int
	// differences is the maximum of d and sd together.
	differences int
	d, sd       int
	// maxOrders is the highest order of each kind that the length allows.
	maxOrders searchPoint

	tried map[searchPoint]bool
	at    searchPoint
	best  *ARIMA
}

// difference sets d, sd and the bounds.
func (s *orderSearch) difference() error {
	level := ARIMASpec{X: s.x}
	if err := level.checkSpec(len(s.y)); err != nil {
		return err
	}
	values, err := s.withoutRegressors()
	if err != nil {
		return err
	}
	have := len(known(s.y))
	if s.season > 1 && s.differences > 0 && have > 2*s.season && seasonStrength(values, s.season) > strongSeason {
		s.sd = 1
		values = lagged(values, s.season)
	}
	s.d = differences(values, s.differences-s.sd)
	s.maxOrders = searchPoint{p: min(maxTerms, have/3), q: min(maxTerms, have/3), constant: s.d+s.sd < 2}
	if s.season > 1 {
		s.maxOrders.sp = min(maxSeasonalTerms, have/3/s.season)
		if s.comparesConditionally() {
			s.maxOrders.sp = min(1, s.maxOrders.sp) // with a daily season, a week of history cannot distinguish two seasonal terms, which double the state
		}
		s.maxOrders.sq = s.maxOrders.sp
		s.maxOrders.p, s.maxOrders.q = min(s.maxOrders.p, s.season-1), min(s.maxOrders.q, s.season-1)
	}
	return nil
}

// withoutRegressors returns the series minus the part that the regressors explain by ordinary least
// squares.
func (s *orderSearch) withoutRegressors() ([]float64, error) {
	if len(known(s.y)) == 0 {
		return nil, fmt.Errorf("no known value in %d steps", len(s.y))
	}
	if len(s.x) == 0 {
		return s.y, nil
	}
	beta, ok := regress(s.y, s.x)
	if !ok {
		return nil, fmt.Errorf("regressors: must be linearly independent of each other and of the constant")
	}
	out := append([]float64(nil), s.y...)
	for i, c := range s.x {
		for t, v := range c {
			out[t] -= beta[i] * v
		}
	}
	return out, nil
}

// regress fits the known values on columns and a constant by ordinary least squares; beta has one
// coefficient per column.
func regress(y []float64, columns [][]float64) (beta []float64, ok bool) {
	values := known(y)
	rows := make([][]float64, len(columns)+1)
	for t, v := range y {
		if math.IsNaN(v) {
			continue
		}
		for i, c := range columns {
			rows[i] = append(rows[i], c[t])
		}
		rows[len(columns)] = append(rows[len(columns)], 1)
	}
	var ls leastSquares
	_, ok = ls.solve(values, rows)
	return ls.beta[:len(columns)], ok
}

// searchOrders returns the best model of the stepwise search: it starts from the best of a few simple models and
// moves to the first better neighbour until there is none.
func (s *orderSearch) searchOrders() (*ARIMA, error) {
	s.tried = map[searchPoint]bool{}
	var failure error
	for _, c := range s.starts() {
		if _, err := s.tryModel(c); err != nil {
			failure = err
		}
	}
	if s.best == nil {
		return s.constantModel(failure)
	}
	for s.moveToBetter() {
	}
	l, err := newLikelihood(s.y, s.spec(s.at))
	if err != nil {
		return nil, err
	}
	if s.comparesConditionally() {
		return l.fit(s.best.searchVariables(), rough), nil
	}
	return l.fit(s.best.searchVariables(), exact), nil
}

// constantModel returns the model without terms, with a constant where the series has enough values for it.
func (s *orderSearch) constantModel(failure error) (*ARIMA, error) {
	for _, constant := range []bool{s.maxOrders.constant, false} {
		if m, err := FitARIMA(s.y, s.spec(searchPoint{constant: constant})); err == nil {
			return m, nil
		}
	}
	return nil, failure
}

func (s *orderSearch) spec(c searchPoint) ARIMASpec {
	return ARIMASpec{ARIMAOrder: ARIMAOrder{P: c.p, D: s.d, Q: c.q, SP: c.sp, SD: s.sd, SQ: c.sq, Season: s.season}, Constant: c.constant, X: s.x}
}

// starts returns the initial models of the search.
func (s *orderSearch) starts() []searchPoint {
	m := s.maxOrders
	out := []searchPoint{
		{min(2, m.p), min(2, m.q), min(1, m.sp), min(1, m.sq), m.constant},
		{constant: m.constant},
		{p: min(1, m.p), sp: min(1, m.sp), constant: m.constant},
		{q: min(1, m.q), sq: min(1, m.sq), constant: m.constant},
	}
	if len(s.y) < 10 {
		out[0] = searchPoint{min(1, m.p), min(1, m.q), 0, 0, m.constant}
	}
	if m.constant {
		out = append(out, searchPoint{})
	}
	return out
}

// moves are the differences between a point and its neighbours, in the sequence of auto.arima.
var moves = []searchPoint{
	{sp: -1},
	{sq: -1},
	{sp: 1},
	{sq: 1},
	{sp: -1, sq: -1},
	{sp: -1, sq: 1},
	{sp: 1, sq: -1},
	{sp: 1, sq: 1},
	{p: -1},
	{q: -1},
	{p: 1},
	{q: 1},
	{p: -1, q: -1},
	{p: -1, q: 1},
	{p: 1, q: -1},
	{p: 1, q: 1},
	{constant: true}, // toggles it
}

// moveToBetter moves to the first better neighbour; false when there is none.
func (s *orderSearch) moveToBetter() bool {
	for _, m := range moves {
		c := searchPoint{s.at.p + m.p, s.at.q + m.q, s.at.sp + m.sp, s.at.sq + m.sq, s.at.constant != m.constant}
		if !s.allowed(c) || len(s.tried) >= maxModels {
			continue
		}
		if ok, _ := s.tryModel(c); ok {
			return true
		}
	}
	return false
}

func (s *orderSearch) allowed(c searchPoint) bool {
	within := func(v, maximum int) bool { return v >= 0 && v <= maximum }
	return within(c.p, s.maxOrders.p) && within(c.q, s.maxOrders.q) && within(c.sp, s.maxOrders.sp) && within(c.sq, s.maxOrders.sq) && (s.maxOrders.constant || !c.constant)
}

// tryModel fits an untried model and keeps it when it is the best so far.
func (s *orderSearch) tryModel(c searchPoint) (ok bool, err error) {
	if s.tried[c] {
		return false, nil
	}
	s.tried[c] = true
	l, err := newLikelihood(s.y, s.spec(c))
	if err != nil {
		return false, err
	}
	l.conditional = !l.undifferenced && s.comparesConditionally()
	m := l.fit(nil, rough)
	if math.IsInf(m.AICc, 1) || !m.rootsAwayFromUnitCircle() || s.best != nil && !(m.AICc < s.best.AICc) {
		return false, nil
	}
	s.best, s.at = m, c
	return true, nil
}

// comparesConditionally reports whether exact likelihoods are too expensive for comparing orders.
func (s *orderSearch) comparesConditionally() bool { return s.season > longSeason }

// rootsAwayFromUnitCircle reports whether the roots of every factor are away from the unit circle.
func (m *ARIMA) rootsAwayFromUnitCircle() bool {
	return rootsBeyond(m.AR, minRoot) && rootsBeyond(negated(m.MA), minRoot) && rootsBeyond(m.SAR, minRoot) && rootsBeyond(negated(m.SMA), minRoot)
}

// searchVariables returns the search variables (see likelihood.coefficients) that correspond to the model's
// coefficients; nil when these are at the boundary of the stationary or invertible ones.
func (m *ARIMA) searchVariables() []float64 {
	out := []float64{}
	for _, factor := range [][]float64{m.AR, negated(m.MA), m.SAR, negated(m.SMA)} {
		u, ok := toPartial(factor)
		if !ok {
			return nil
		}
		out = append(out, u...)
	}
	return out
}
