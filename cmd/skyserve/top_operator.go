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
	// adminTimeout bounds a request to all balancers: slower ones are omitted.
	adminTimeout = 2 * time.Second
	// loadWindow is the length of the dashboard's load history.
	loadWindow = 3 * time.Hour
)

// topOperator is the tui.Operator of one service. It queries the service's balancers, and changes
// the service if it was deployed from this machine.
type topOperator struct {
	name           string // of the service; empty if only addresses were given
	addressesGiven bool   // the addresses come from the command line
	admins         []*telemetry.Client
	snapshot       func() *telemetry.Snapshot // the displayed snapshot; nil before the first
	now            func() time.Time
	clouds         cloudFlags
	logs           logCache
}

// newTopOperator returns the operator of the balancers from findAdmins. given is set if their
// addresses come from the command line. shown returns the displayed snapshot.
func newTopOperator(name string, given bool, admins []*telemetry.Client, shown func() *telemetry.Snapshot) *topOperator {
	return &topOperator{name: name, addressesGiven: given, admins: admins, snapshot: shown, now: time.Now}
}

// Requests queries all balancers concurrently. A forwarded request is listed twice: by the balancer
// that received it and by the one that forwarded it, each with its part.
func (o *topOperator) Requests(ctx context.Context, limit int) ([]tui.RequestRow, error) {
	if limit < 1 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	found, errs := make([][]telemetry.RequestSummary, len(o.admins)), make([]error, len(o.admins))
	var asking sync.WaitGroup
	for i, admin := range o.admins {
		asking.Go(func() { found[i], errs[i] = admin.Requests(ctx, min(limit, telemetry.MaxRequests)) })
	}
	asking.Wait()
	if err := errors.Join(errs...); err != nil && !slices.Contains(errs, nil) {
		return nil, fmt.Errorf("fetching requests: %w", err)
	}
	all := slices.Concat(found...)
	slices.SortFunc(all, func(a, b telemetry.RequestSummary) int {
		return cmp.Or(b.At.Compare(a.At), cmp.Compare(a.Request, b.Request), cmp.Compare(a.Balancer, b.Balancer))
	})
	rows := make([]tui.RequestRow, min(limit, len(all)))
	for i := range rows {
		rows[i] = tui.RequestRow{RequestSummary: all[i], Why: explain.Why(all[i])}
	}
	return rows, nil
}

// Explain returns the output of skyserve explain.
func (o *topOperator) Explain(ctx context.Context, request string, width int) (string, error) {
	explanation := explain.Gather(ctx, o.name, request, explainSources(o.admins))
	if err := ctx.Err(); err != nil {
		return "", err
	}
	if !explanation.Found() {
		return explanation.Missing(time.Local) + "\n\n" + strings.Join(notRecordedHints(o.addressesGiven), "\n") + "\n", nil
	}
	var page strings.Builder
	err := explanation.WriteText(&page, width, time.Local)
	return page.String(), err
}

// Load returns the interactive load of the completed minutes of the last three hours.
func (o *topOperator) Load(ctx context.Context) ([]tui.LoadSeries, error) {
	now := o.now()
	points, _, failures := controller.ReadHistory(ctx, o.admins, now.Add(-loadWindow).Unix()/60)
	if len(failures) == len(o.admins) {
		return nil, fmt.Errorf("reading the history: %w", errors.Join(failures...))
	}
	h, err := demand.Traffic(points)
	if err != nil {
		return nil, err
	}
	return interactiveLoad(h.Before(now.Unix() / 60)), nil
}

// interactiveLoad returns the load of a history's interactive tiers: uncached prompt tokens per
// second, by model and region.
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

// Spec returns the service.yaml from a balancer, or else from this machine's state directory.
func (o *topOperator) Spec(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	var errs []error
	for _, admin := range o.admins {
		text, err := admin.Service(ctx)
		if err == nil {
			return string(text), nil
		}
		errs = append(errs, err)
	}
	if svc, err := o.localService(); err == nil {
		text, err := os.ReadFile(svc.SpecFile())
		return string(text), err
	}
	return "", fmt.Errorf("reading service.yaml: %w", errors.Join(errs...))
}

// Deployed returns the service.yaml in this machine's state directory if the service was deployed from here.
func (o *topOperator) Deployed(context.Context) (*service.Spec, error) {
	svc, err := o.localService()
	switch {
	case errors.Is(err, errNotDeployedHere):
		return nil, nil
	case err != nil:
		return nil, err
	}
	spec, err := deployedSpec("", svc)
	if err == nil && spec == nil {
		err = fmt.Errorf("reading %s: it is missing or invalid", svc.SpecFile())
	}
	return spec, err
}

// Logs returns the last log lines of a machine of the service.
func (o *topOperator) Logs(ctx context.Context, id string, lines int) ([]string, error) {
	if id == "" {
		return nil, errors.New("reading a log: no id")
	}
	svc, err := o.localService()
	if err != nil {
		return nil, o.withCommand(err, "reading the log of "+id, "logs "+o.serviceName()+" "+id)
	}
	text, err := o.logs.tail(ctx, id, lines, o.now(), func() (*machineLogs, error) {
		logs, _, err := openLogs(ctx, &o.clouds, svc, id)
		return logs, err
	})
	return text, withHint(err)
}

// errNotDeployedHere is returned for changes of a service that was not deployed from this machine.
var errNotDeployedHere = errors.New("the service was not deployed from this machine")

// localService returns the service if it was deployed from this machine, and errNotDeployedHere otherwise. If
// addresses were given, it is the local service to which one of them belongs.
func (o *topOperator) localService() (local.Service, error) {
	home, err := local.OpenHome()
	if err != nil {
		return local.Service{}, err
	}
	names := []string{o.name}
	if o.addressesGiven {
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
			continue // joined with 'connect', not deployed from here
		}
		mine := false
		if err == nil {
			mine, err = o.matchesService(svc)
		}
		if mine || err != nil {
			return svc, err
		}
	}
	return local.Service{}, errNotDeployedHere
}

// matchesService reports whether the operator's balancers belong to svc.
func (o *topOperator) matchesService(svc local.Service) (bool, error) {
	if !o.addressesGiven {
		return svc.Name() == o.name, nil
	}
	urls, err := loadAdminURLs(svc)
	if err != nil {
		return false, err
	}
	objects, err := svc.Objects()
	if err != nil {
		return false, err
	}
	for _, b := range local.RunningObjects(objects, provision.KindBalancer) {
		urls = append(urls, b.Admin)
	}
	return slices.ContainsFunc(o.admins, func(c *telemetry.Client) bool { return slices.Contains(urls, c.Base()) }), nil
}

// serviceName returns the service's name; empty if it is unknown.
func (o *topOperator) serviceName() string {
	if s := o.snapshot(); o.name == "" && s != nil {
		return s.Service
	}
	return o.name
}

// withCommand adds to errNotDeployedHere the command to run on the machine from which the
// service was deployed.
func (o *topOperator) withCommand(err error, doing, verb string) error {
	if !errors.Is(err, errNotDeployedHere) {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return fmt.Errorf("%s: %w; run 'skyserve %s' on the machine from which it was deployed", doing, err, strings.Join(strings.Fields(verb), " "))
}

// withHint appends an error's hint to its message.
func withHint(err error) error {
	var advised *exitError
	if errors.As(err, &advised) && advised.hint != "" {
		return fmt.Errorf("%w: %s", err, advised.hint)
	}
	return err
}
