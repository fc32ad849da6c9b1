package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"skyserve/forecast"
	"skyserve/internal/controller"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/internal/telemetry/demand"
	"skyserve/lbd/explain"
	"skyserve/provision"
	"skyserve/provision/local"
	"skyserve/tui"
)

const (
	// askWithin bounds asking all balancers at once: one that takes longer is left out.
	askWithin = 2 * time.Second
	// loadWindow is how much of the load of the past a dashboard shows.
	loadWindow = 3 * time.Hour
)

// topOperator is the tui.Operator of one service: it asks the service's balancers, and
// acts where the service was brought up from this machine.
type topOperator struct {
	name   string // of the service; empty where only addresses were given
	given  bool   // the addresses come from the command line
	admins []*telemetry.Client
	shown  func() *telemetry.Snapshot // what the dashboard shows; nil before the first
	now    func() time.Time
	clouds cloudFlags
	book   machineBook
}

// newTopOperator is the operator of the balancers that findAdmins found: given says
// that it was told their addresses. shown is what the dashboard shows.
func newTopOperator(name string, given bool, admins []*telemetry.Client, shown func() *telemetry.Snapshot) *topOperator {
	return &topOperator{name: name, given: given, admins: admins, shown: shown, now: time.Now}
}

// Requests asks all balancers at once. A forwarded request is listed by both that know
// it: by the one that it came to, and by the one that it came from, each with its part.
func (o *topOperator) Requests(ctx context.Context, limit int) ([]tui.Request, error) {
	if limit < 1 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	found, errs := make([][]telemetry.RequestSummary, len(o.admins)), make([]error, len(o.admins))
	var asking sync.WaitGroup
	for i, admin := range o.admins {
		asking.Go(func() { found[i], errs[i] = admin.Requests(ctx, min(limit, telemetry.MaxRequests)) })
	}
	asking.Wait()
	if err := errors.Join(errs...); err != nil && !slices.Contains(errs, nil) {
		return nil, fmt.Errorf("asking for requests: %w", err)
	}
	all := slices.Concat(found...)
	slices.SortFunc(all, func(a, b telemetry.RequestSummary) int {
		return cmp.Or(b.At.Compare(a.At), cmp.Compare(a.Request, b.Request), cmp.Compare(a.Balancer, b.Balancer))
	})
	rows := make([]tui.Request, min(limit, len(all)))
	for i := range rows {
		rows[i] = tui.Request{RequestSummary: all[i], Why: explain.Why(all[i])}
	}
	return rows, nil
}

// Story is the page of skyserve explain.
func (o *topOperator) Story(ctx context.Context, request string, width int) (string, error) {
	story := explain.Gather(ctx, o.name, request, explainSources(o.admins))
	if err := ctx.Err(); err != nil {
		return "", err
	}
	if !story.Found() {
		return "", errors.New(strings.ReplaceAll(story.Missing(time.Local), "\n ", ";"))
	}
	var page strings.Builder
	err := story.WriteText(&page, width, time.Local)
	return page.String(), err
}

// Load is the interactive load of the last three hours, by the minutes that are over.
func (o *topOperator) Load(ctx context.Context) ([]tui.LoadSeries, error) {
	now := o.now()
	points, _, failures := controller.History(ctx, o.admins, now.Add(-loadWindow).Unix()/60)
	if len(failures) == len(o.admins) {
		return nil, fmt.Errorf("reading the history: %w", errors.Join(failures...))
	}
	h, err := demand.Traffic(points)
	if err != nil {
		return nil, err
	}
	return interactiveLoad(h.Before(now.Unix() / 60)), nil
}

// interactiveLoad is what a history has of interactive tiers: the prompt tokens a second
// that no prefix cache spared, by model and region.
func interactiveLoad(h *forecast.History) []tui.LoadSeries {
	var all []tui.LoadSeries
	for i := range h.Series {
		s := &h.Series[i]
		if s.Tier == service.TierDeferred || h.Minutes == 0 {
			continue
		}
		last := len(all) - 1
		if last < 0 || all[last].Model != s.Model || all[last].Region != s.Region { // the series are sorted
			all = append(all, tui.LoadSeries{
				Model: s.Model, Region: s.Region, Start: time.Unix(h.First*60, 0).UTC(), Step: time.Minute, TPS: make([]float64, h.Minutes),
			})
			last++
		}
		for m := range all[last].TPS { // a minute is unknown to all tiers of a region, or to none
			all[last].TPS[m] += math.Max(0, s.Values[m]-s.Cached[m]) / 60
		}
	}
	return all
}

// Spec is the service.yaml as a balancer serves it, else as it is kept here.
func (o *topOperator) Spec(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	var errs []error
	for _, admin := range o.admins {
		text, err := admin.Service(ctx)
		if err == nil {
			return string(text), nil
		}
		errs = append(errs, err)
	}
	if svc, err := o.here(); err == nil {
		text, err := os.ReadFile(svc.SpecFile())
		return string(text), err
	}
	return "", fmt.Errorf("reading the service.yaml: %w", errors.Join(errs...))
}

// Logs are the last lines that a machine of the service wrote.
func (o *topOperator) Logs(ctx context.Context, id string, lines int) ([]string, error) {
	if id == "" {
		return nil, errors.New("reading a log: whose is not said")
	}
	svc, err := o.here()
	if err != nil {
		return nil, o.elsewhere(err, "reading the log of "+id, "logs "+o.serviceName()+" "+id)
	}
	text, err := o.book.tail(ctx, id, lines, o.now(), func() (*machineLogs, error) {
		logs, _, err := openLogs(ctx, &o.clouds, svc, id)
		return logs, err
	})
	return text, inOneLine(err)
}

// errElsewhere is why this machine can only look.
var errElsewhere = errors.New("it was not brought up from this machine")

// here is the service where it was brought up from this machine; errElsewhere where it
// was not. Addresses from a command line are those of a service here only where one of
// them is.
func (o *topOperator) here() (local.Service, error) {
	home, err := local.OpenHome()
	if err != nil {
		return local.Service{}, err
	}
	names := []string{o.name}
	if o.given {
		if names, err = home.Services(); err != nil {
			return local.Service{}, err
		}
	}
	for _, name := range names {
		svc, err := home.Service(name)
		if err != nil {
			return svc, err
		}
		_, err = os.Stat(svc.SpecFile())
		if errors.Is(err, fs.ErrNotExist) {
			continue // this machine is connected to it, and no more
		}
		mine := false
		if err == nil {
			mine, err = o.speaksTo(svc)
		}
		if mine || err != nil {
			return svc, err
		}
	}
	return local.Service{}, errElsewhere
}

// speaksTo says whether the operator asks a service of this machine.
func (o *topOperator) speaksTo(svc local.Service) (bool, error) {
	if !o.given {
		return svc.Name() == o.name, nil
	}
	urls, err := keptAdmins(svc)
	if err != nil {
		return false, err
	}
	objects, err := svc.Objects()
	if err != nil {
		return false, err
	}
	for _, b := range local.Running(objects, provision.KindBalancer) {
		urls = append(urls, b.Admin)
	}
	return slices.ContainsFunc(o.admins, func(c *telemetry.Client) bool { return slices.Contains(urls, c.Base()) }), nil
}

// serviceName is the service's name, as far as it is known.
func (o *topOperator) serviceName() string {
	if s := o.shown(); o.name == "" && s != nil {
		return s.Service
	}
	return o.name
}

// elsewhere says of what cannot be done from this machine where it can be.
func (o *topOperator) elsewhere(err error, doing, verb string) error {
	if !errors.Is(err, errElsewhere) {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return fmt.Errorf("%s: %w; there, run 'skyserve %s'", doing, err, strings.Join(strings.Fields(verb), " "))
}

// inOneLine is an error with its advice, for who has a line for both.
func inOneLine(err error) error {
	var advised *exitError
	if errors.As(err, &advised) && advised.hint != "" {
		return fmt.Errorf("%w: %s", err, advised.hint)
	}
	return err
}
