package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/controller"
	"skyserve/internal/controller/deploy"
	"skyserve/internal/printable"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/provision"
	"skyserve/provision/cloud"
	"skyserve/provision/local"
	"skyserve/tui"
)

// serviceView observes a service as this machine's operator.
type serviceView struct {
	svc       local.Service
	spec      *service.Spec
	operator  operator
	clouds    cloudFlags
	problem   string // with the service's state directory
	inspector *deploy.Inspector
}

// openView opens a view of a service; doing names the purpose in errors.
func openView(ctx context.Context, clouds *cloudFlags, svc local.Service, doing string) (*serviceView, error) {
	v := &serviceView{svc: svc}
	var err error
	if v.spec, err = deployedSpec("", svc); err == nil {
		err = checkObservable(svc, v.spec)
	}
	if err != nil {
		return nil, err
	}
	if v.spec == nil {
		v.spec = &service.Spec{Name: svc.Name()}
		v.problem = specProblem(svc)
	}
	if cloud.UsesClouds(v.spec) {
		v.operator, err = operatorOf(svc, doing, "run this on the machine from which the service was deployed; 'skyserve connect' makes this machine an operator")
	} else {
		v.operator, err = openOperator(svc, false)
		v.clouds = *clouds
		v.clouds.localService, clouds = &svc, &v.clouds
	}
	if err != nil && (cloud.UsesClouds(v.spec) || !errors.Is(err, fs.ErrNotExist)) { // without enrolments there is no agent to query
		return nil, err
	}
	var program machineProgram
	if err := svc.LoadValue(noteProgram, &program); err != nil {
		return nil, err
	}
	clouds.programs, clouds.downloads = program.HadBucket, program.fromBuckets()
	regions, err := v.machineRegions()
	if err != nil {
		return nil, err
	}
	places, err := clouds.providersOf(ctx, v.spec, regions...)
	if err != nil {
		return nil, cloudError(err)
	}
	var zone writableZone
	if err := svc.LoadValue(noteZone, &zone); err != nil {
		return nil, err
	}
	f := newDeployer(v.spec, v.operator.owner, places, program)
	if v.operator.owner == "" { // without enrolments, missing machines are still reported
		f.UserData = userData(v.spec.Name, "nobody", program)
	}
	var federated federation
	if err := svc.LoadValue(noteFederation, &federated); err != nil {
		return nil, err
	}
	f.HostedZoneID, f.HealthChecks, f.FederatedAccount = zone.ID, zone.HealthChecks, federated.Account
	if !program.isChosen() && cloud.UsesClouds(v.spec) {
		f.UserData = nil
	}
	v.inspector = &deploy.Inspector{
		Deployer: f, Listers: map[service.Region]deploy.Lister{}, ReadStatus: v.agentStatus, OperatorExpiry: v.operator.certificateExpiry(), File: upFile(svc),
		Snapshot: v.delivery(nil).Snapshot, CheckKey: v.checkKey, StateError: v.problem,
	}
	if err := svc.LoadValue(noteImages, &v.inspector.Images); err != nil {
		return nil, err
	}
	if v.inspector.Decisions, err = deploy.ReadReplicaDecisions(decisionsFile(svc)); err != nil {
		return nil, err
	}
	if v.operator.authority != nil {
		if v.inspector.Enrolments, err = deploy.ReadEnrolments(svc); err != nil {
			return nil, err
		}
		v.inspector.Signers = v.operator.signers()
	}
	for _, r := range regions {
		if v.inspector.Listers[r], err = clouds.providersOf(ctx, v.spec, r); err != nil {
			return nil, cloudError(err)
		}
	}
	return v, nil
}

// machineRegions returns the regions in which the service may have machines. Without a valid service.yaml, nothing tells which
// of them belong there: then it returns none.
func (v *serviceView) machineRegions() ([]service.Region, error) {
	if v.problem != "" {
		return nil, nil
	}
	regions, err := possibleRegions(v.svc, v.spec)
	return slices.DeleteFunc(regions, func(r service.Region) bool { return r.ShortName() == cloud.GlobalRegion }), err
}

// specProblem returns why the stored service.yaml of a service cannot be used.
func specProblem(svc local.Service) string {
	const next = "; run 'skyserve up' with the service's file to store it again"
	text, err := os.ReadFile(svc.SpecFile())
	if errors.Is(err, fs.ErrNotExist) {
		return "service.yaml is missing in the state directory" + next
	}
	if err == nil {
		_, err = service.ParseDeployed(svc.SpecFile(), text)
	}
	var problems service.Errors
	switch {
	case errors.As(err, &problems) && len(problems) > 0:
		return problems[0].Message() + next
	case err != nil:
		return fmt.Sprintf("reading service.yaml: %v%s", err, next)
	}
	return ""
}

// delivery returns the connection to the machines' agents.
func (v *serviceView) delivery(have []provision.Object) *deploy.Delivery {
	return &deploy.Delivery{Service: v.spec.Name, Party: v.operator.party, Machines: have}
}

// agentStatus requests the status of a machine from its agent.
func (v *serviceView) agentStatus(ctx context.Context, have []provision.Object, o provision.Object) (agent.Status, error) {
	if v.operator.party.Certificate == nil {
		return agent.Status{}, errNoOperator
	}
	h := v.delivery(have)
	return h.AgentClient(o).Status(ctx, h.Machine(o))
}

// checkKey checks the key that a machine presents.
func (v *serviceView) checkKey(ctx context.Context, o provision.Object, fingerprint string) error {
	d := v.delivery(nil)
	return d.AgentClient(o).CheckKey(ctx, d.Machine(o), fingerprint)
}

// errNoOperator is the error for machines of a service whose operator keys are missing.
var errNoOperator = errors.New("the operator's keys are missing in the service's state directory")

// observeService observes the service.
func (v *serviceView) observeService(ctx context.Context) (statusPage, error) {
	status, err := v.inspector.Status(ctx)
	if err != nil {
		return statusPage{}, cloudError(err)
	}
	return statusPage{status, func(w io.Writer, format outputFormat) error {
		if format.noHeaders || format.kind == outputName {
			return format.write(w, status, machineTable(status))
		}
		return v.writeStatus(w, status, format)
	}}, nil
}

// writeStatus prints a status as text.
func (v *serviceView) writeStatus(w io.Writer, s *deploy.ServiceStatus, format outputFormat) error {
	heading := printable.NewTable(w)
	heading.HideTitles("SERVICE", titleState)
	heading.Row(s.Service, string(s.State), fmt.Sprintf("$%.2f/h", s.CostPerHour), "store: "+storeText(s.Store))
	if err := heading.Flush(); err != nil {
		return err
	}
	printPlainHTTP(w, v.spec)
	var replicas []drainableReplica
	for _, r := range s.Regions {
		for _, m := range r.Replicas {
			replicas = append(replicas, drainableReplica{m.ID, m.Model, m.Drained, m.Drained || m.Donated})
		}
	}
	printDrained(w, v.spec, replicas)
	alerts, reasonOfController := s.Alerts, ""
	if c := s.Controller; c != nil {
		alerts, reasonOfController = telemetry.MergeAlerts(s.Alerts, c.Alerts), controllerReason(c)
	}
	for _, a := range alerts {
		printMessage(w, string(a.Severity), "%s", strings.TrimPrefix(a.Line(), string(a.Severity)+": "))
	}
	for _, problem := range s.Problems {
		printMessage(w, labelProblem, "%s", problem)
	}
	for _, line := range slices.Concat([]string{s.Peak, s.Plan, s.Deviation, s.Donations}, s.Launches.Lines(), s.Launches.FailureLines(time.Local), s.Batches, s.Cold, s.Events) {
		if line != "" {
			fmt.Fprintln(w, line)
		}
	}
	if s.LastFailure != "" {
		fmt.Fprintf(w, "last failure: %s; 'skyserve events %s' shows all events\n", s.LastFailure, s.Service)
	}
	writeName(w, s.DNS)
	switch {
	case s.Controller == nil: // balancers may still report the one that led
		fmt.Fprintf(w, "controller: not running; 'skyserve up %s' starts it\n", upFile(v.svc))
	case s.Leadership != nil:
		fmt.Fprintln(w, s.Leadership.Line())
	}
	if ends := certificateEnd(s); ends != nil && v.spec.DNS != nil {
		fmt.Fprintf(w, "certificate: %s, expires %s\n", v.spec.DNS.Name, ends.UTC().Format(time.DateOnly))
	}
	printImages(w, s.Images)
	for _, r := range s.Reservations {
		fmt.Fprintf(w, "reservation %s in %s: %s\n", r.ID, r.Region, cloud.DescribeReservation(&r))
	}
	t := printable.NewTable(w)
	t.Row()
	machines := machineTable(s)
	if d := s.DNS; d != nil && d.Server != nil {
		machines.rows = append(machines.rows, listRow{name: d.Server.ID, cells: []string{"", "nameserver", d.Server.ID, string(d.Server.State), d.Server.Endpoint, "", reasonText(d.Server.Reason, d.Server.Desired), "", ""}, wide: make([]string, len(machines.wide))})
	}
	if c := s.Controller; c != nil {
		machines.rows = append(machines.rows, listRow{name: c.ID, cells: []string{"", "controller", c.ID, string(c.State), c.Admin, "", reasonOfController, "", ""}, wide: make([]string, len(machines.wide))})
	}
	format.addRows(t, machines)
	if len(s.Drift) > 0 {
		copied := ""
		if upFile(v.svc) == v.svc.SpecFile() {
			copied = " (a copy of the file of the last 'up')"
		}
		t.Rowf("\ndrift; %s: skyserve up %s%s", v.repairOf(s), upFile(v.svc), copied)
	}
	t.HideTitles(titleChange)
	for _, c := range s.Drift {
		t.Rowf("  %s %s\t%s\t%s\t%s", changeMark(c.Action), c.Kind, c.ID, c.Region, c.Reason)
	}
	return t.Flush()
}

// storeText returns the state of the store as text.
func storeText(state string) string {
	if state == controller.StoreStarting {
		return state + " (no controller has reported its state yet)"
	}
	return state
}

// repairOf says who repairs the drift of a service, to precede a command. A controller starts replicas again, and the
// balancers on this computer.
func (v *serviceView) repairOf(s *deploy.ServiceStatus) string {
	isRepaired := func(c deploy.StatusChange) bool {
		starts := c.Action == provision.ActionLaunch || c.Action == provision.ActionReplace
		return starts && (c.Kind == provision.KindReplica || c.Kind == provision.KindBalancer && !cloud.UsesClouds(v.spec))
	}
	notRepaired := func(c deploy.StatusChange) bool { return !isRepaired(c) }
	switch {
	case slices.ContainsFunc(s.Drift, notRepaired):
		return "repair it with"
	case s.Controller != nil && s.Controller.State == service.StateReady:
		return "the controller repairs it; if it stays"
	case s.FailsOver():
		return "the next leader repairs it; if it stays"
	}
	return "repair it with"
}

// machineTable returns the table of the balancers and replicas.
func machineTable(s *deploy.ServiceStatus) list {
	now := time.Now()
	l := list{titles: []string{"REGION", "KIND", "ID", titleState, "ADDRESS", "MODEL", "REASON", "OFFERING", "$/H"}, wide: slices.Concat(gpuTitles, []string{"VERSION", "UPTIME"}), fitting: printable.Fitting{Optional: []string{"OFFERING", "ADDRESS", "MODEL"}}}
	for _, r := range s.Regions {
		for _, m := range r.Balancers {
			l.rows = append(l.rows, machineRow(r.Name, provision.KindBalancer, m, now))
		}
		for _, m := range r.Replicas {
			l.rows = append(l.rows, machineRow(r.Name, provision.KindReplica, m, now))
		}
	}
	return l
}

// certificateEnd returns the earliest expiry of the balancers' certificates; nil if unknown.
func certificateEnd(s *deploy.ServiceStatus) (ends *time.Time) {
	for _, r := range s.Regions {
		for _, b := range r.Balancers {
			if c := b.Certificate; c != nil && c.ExpiresAt != nil && (ends == nil || c.ExpiresAt.Before(*ends)) {
				ends = c.ExpiresAt
			}
		}
	}
	return ends
}

// machineRow returns the row of a machine.
func machineRow(region service.Region, kind provision.ObjectKind, m deploy.MachineStatus, now time.Time) listRow {
	offering, price := offeringCells(region, m)
	return listRow{m.ID, []string{
		string(region), string(kind), m.ID, string(m.State), cmp.Or(m.Endpoint, m.URL), m.Model, reasonText(startText(region, m), m.Desired), offering, price,
	}, append(gpuCells(m), m.Version, uptimeCell(m, now))}
}

// gpuTitles are the titles of gpuCells.
var gpuTitles = []string{"GPU%", "GPU MEMORY", "TEMPERATURE"}

// gpuCells returns the figures of a machine's GPUs; empty if unknown.
func gpuCells(m deploy.MachineStatus) []string {
	cells, s := make([]string, 3), telemetry.SummarizeGPUs(m.GPUs)
	if s.Utilisation != nil {
		cells[0] = fmt.Sprintf("%.0f%%", 100**s.Utilisation)
	}
	if s.Memory != nil {
		cells[1] = fmt.Sprintf("%.0f%%", 100**s.Memory)
	}
	if s.Temperature != nil {
		cells[2] = fmt.Sprintf("%.0f C", *s.Temperature)
	}
	return cells
}

// uptimeCell returns how long a replica has been ready; empty if unknown.
func uptimeCell(m deploy.MachineStatus, now time.Time) string {
	if m.ReadySince == nil {
		return ""
	}
	return tui.Age(now.Sub(*m.ReadySince))
}

// offeringCells returns the offering and the price of a machine; empty if unknown.
func offeringCells(region service.Region, m deploy.MachineStatus) (offering, price string) {
	if m.Offering != nil && !cloud.RunsOnThisComputer(region) {
		offering = m.Offering.String()
	}
	if m.CostPerHour > 0 {
		price = fmt.Sprintf("%.4f", m.CostPerHour)
	}
	return offering, price
}

// decisionsName is the name of the file of drained and donated replicas.
const decisionsName = "decisions.json"

// decisionsFile is the file of the decisions about a local service's replicas.
func decisionsFile(svc local.Service) string { return filepath.Join(svc.Dir(), decisionsName) }

// controllerReason returns the reason of the controller's row.
func controllerReason(c *deploy.ControllerStatus) string {
	reason := "runs beside " + c.Machine
	switch {
	case c.Machine == "":
		return c.Reason
	case c.Reason == "":
		return reason
	}
	return reason + ": " + c.Reason
}
