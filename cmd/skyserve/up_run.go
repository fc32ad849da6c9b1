package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
	"skyserve/provision/local"
	"skyserve/tui"
)

// upRun is a run of `skyserve up`, or of a command that changes replicas only, on a service that it has opened.
type upRun struct {
	*up
	in       io.Reader
	svc      local.Service
	spec     *service.Spec
	text     []byte
	operator operator
	// enrolments records the balancers that this machine's operator launched.
	enrolments *deploy.Enrolments
	strangers  []provision.Object // machines that claim to be balancers but have no enrolment
	places     provision.MultiCloud
	// regions are those of places: the regions of the service, and those from which this run removes its objects.
	regions  []service.Region
	attestor provision.KeyAttestor // of places, for all deliveries of the run
	zone     provision.DNSZone
	// hostedZone is the zone in which machines write records.
	hostedZone writableZone
	// federation is how controllers replace the only balancer of a cloud; federationProblem why they cannot, nil = they
	// can.
	federation        federation
	federationProblem error
	// replacing is held while awaitReplaced delivers.
	replacing sync.Mutex
	deployer  *deploy.Deployer
	changes   *deploy.MachinePlan
	program   machineProgram
	// earlierProgram is the binary of machines in clouds before this run.
	earlierProgram machineProgram
	// filter is Deployer.Filter; it is set when only replicas change.
	filter func(*deploy.MachinePlan, provision.Change) bool
	quotas quotaView
	// launches are the results of checking the launches.
	launches []provision.LaunchCheck
	// controllers are the machines that ran a controller before the run.
	controllers []string
	// images are the engines' images with their digests.
	images deploy.Images
	// draining are the replicas that balancers must stop using.
	draining map[string]bool
	// drained are the replicas that operators drained.
	drained []string
	// onlyReplicas are the replicas to deliver to and to wait for; nil = all.
	onlyReplicas map[string]bool
	// starts shows the machines of clouds that start.
	starts *startDisplay
	// delivered records what the run has completed.
	delivered delivered
	// reloads are the machines that reload their configuration.
	reloads provision.Changes
	// rereads are the balancers among them whose configuration has not changed: they read their files again.
	rereads []string
	// interim is what the run does for names that belong to other models now; nil without any.
	interim *interimRun
}

// deployService creates or updates a service.
func deployService(ctx context.Context, u *up, in io.Reader, spec *service.Spec, text []byte) error {
	home, err := local.OpenHome()
	if err != nil {
		return err
	}
	svc, err := home.Service(spec.Name)
	if err != nil {
		return err
	}
	c := &upRun{up: u, in: in, svc: svc, spec: spec, text: text, starts: newStartDisplay(u)}
	if !cloud.UsesClouds(spec) {
		c.clouds.localService = &svc
	}
	lock, err := lockService(ctx, svc, u.errOut)
	if err != nil {
		return err
	}
	defer lock.release()
	if err := checkSameKind(svc, u.file, spec); err != nil {
		return err
	}
	if err := c.warnOfReadableSecrets(); err != nil {
		return err
	}
	if err := c.openService(ctx); err != nil {
		lock.removeUnused()
		return cloudError(specUsage(err))
	}
	c.in = lock.input(ctx, in, c.listObjects)
	if err := c.checkInputs(); err != nil {
		lock.removeUnused()
		return err
	}
	if u.dryRun {
		lock.removeUnused()
		return c.printResult(nil, false)
	}
	confirm := c.confirm
	if u.observer != nil {
		confirm = func() error { return u.observer.awaitApproval(ctx, c) }
	}
	if err := confirm(); err != nil {
		lock.removeUnused()
		return err
	}
	return c.applyRecorded(ctx)
}

// listObjects lists the objects of the service.
func (u *upRun) listObjects(ctx context.Context) ([]provision.Object, error) {
	return u.places.List(ctx, u.spec.Name)
}

// earlierVersionError returns an error if an earlier version of skyserve launched machines under names
// without a kind, such as those at Google. Their kind is unknown, and launching others beside them
// would create a second service.
func earlierVersionError(have []provision.Object, name, file string) error {
	var handles []string
	for _, o := range have {
		if o.Kind == "" {
			handles = append(handles, o.Handle)
		}
	}
	if len(handles) == 0 {
		return nil
	}
	return failed(fmt.Errorf("%s: launched by an earlier version of skyserve, whose machine names do not contain the kind of machine", strings.Join(handles, ", ")),
		fmt.Sprintf("skyserve down %s, then: skyserve up %s", name, file))
}

// checkInputs returns why the changes cannot be made: secrets and files that cannot be read or used, ports in use, or the
// budget. Dry runs and rehearsals check the same.
func (u *upRun) checkInputs() error {
	if err := u.checkSecrets(); err != nil {
		return err
	}
	if err := u.checkPorts(); err != nil {
		return err
	}
	err := checkBudget(u.spec, u.changes)
	if err != nil { // it is the sum of the changes
		printChanges(u.errOut, u.spec.Name, u.shownPlan())
	}
	return err
}

// confirm shows the changes and the quotas that they affect, and prompts for confirmation.
func (u *upRun) confirm() error {
	printChanges(u.errOut, u.spec.Name, u.shownPlan())
	printBudget(u.errOut, u.spec)
	printImages(u.errOut, u.shownImages())
	u.printSingleStore(u.errOut)
	u.interim.print(u.errOut)
	printPlainHTTP(u.errOut, u.spec)
	printFederation(u.errOut, u.spec, u.federationProblem)
	printFailedLaunches(u.errOut, u.launches)
	u.quotas.printQuotas(u.errOut)
	if err := u.quotas.checkFits(u.in, u.yes); err != nil {
		return err
	}
	return confirmBilled(u.in, u.errOut, u.changes, u.yes)
}

// openService loads this machine's operator of the service and computes the changes.
func (u *upRun) openService(ctx context.Context) (err error) {
	if u.operator, err = openOperator(u.svc, true); err != nil {
		return err
	}
	if u.enrolments, err = deploy.ReadEnrolments(u.svc); err != nil {
		return err
	}
	var before machineProgram
	if err := u.svc.LoadValue(noteProgram, &before); err != nil {
		return err
	}
	if cloud.UsesClouds(u.spec) {
		if u.program, err = chooseProgram(ctx, u.programURL, before, u.filter != nil); err != nil {
			return err
		}
		u.earlierProgram = before
	}
	u.clouds.programs, u.clouds.downloads = u.program.HadBucket, u.program.fromBuckets()
	u.regions = cloud.ManagedRegions(u.spec)
	if u.filter == nil { // a run that changes only some machines needs no access to a cloud without machines
		if u.regions, err = possibleRegions(u.svc, u.spec); err != nil {
			return err
		}
	}
	if u.places, err = u.clouds.providersOf(ctx, u.spec, u.regions...); err != nil {
		return err
	}
	u.attestor = deploy.LimitAttestor(u.places)
	if err := u.program.locate(ctx, u.places, u.spec, u.operator.owner); err != nil {
		return err
	}
	if err := u.resolveImages(ctx); err != nil {
		return err
	}
	if u.zone, err = u.clouds.nameZone(ctx, u.spec, u.svc); err != nil {
		return err
	}
	if u.hostedZone, err = u.clouds.hostedZone(ctx, u.spec, u.operator.owner); err != nil {
		return err
	}
	if err := u.useFederation(ctx); err != nil {
		return err
	}
	u.deployer = newDeployer(u.spec, u.operator.owner, u.places, u.program)
	u.deployer.HostedZoneID, u.deployer.HealthChecks, u.deployer.FederatedAccount = u.hostedZone.ID, u.hostedZone.HealthChecks, u.federation.Account
	u.deployer.LimitToBudget()
	decided, err := deploy.ReadReplicaDecisions(decisionsFile(u.svc))
	if err != nil {
		return err
	}
	u.deployer.DesiredCounts, u.drained = decided.DesiredCounts(u.operator.owner), decided.Drained
	if u.draining == nil {
		u.draining = decided.NotServing()
	}
	u.deployer.Filter, u.deployer.Enrolments, u.deployer.WaitReady, u.deployer.Drain = u.filter, u.enrolments, u.awaitReplaced, u.drain
	if u.upgrade && !cloud.UsesClouds(u.spec) {
		if _, u.deployer.Build, err = local.Executable(); err != nil {
			return err
		}
	}
	if u.changes, err = u.deployer.Plan(ctx); err != nil {
		return err
	}
	if err := earlierVersionError(u.changes.Observed, u.spec.Name, u.file); err != nil {
		return err
	}
	if err := localEarlierVersionError(u.changes.Observed, u.spec.Name, u.file); err != nil {
		return err
	}
	if err := u.admitBalancers(ctx, u.changes.Observed, u.replace); err != nil {
		return err
	}
	if u.controllers, err = u.runningControllers(ctx); err != nil {
		return err
	}
	if err := u.checkStoreKept(); err != nil {
		return err
	}
	if err := checkName(ctx, u.zone, u.spec, u.operator.owner); err != nil {
		return err
	}
	if err := u.replaceDead(ctx); err != nil {
		return err
	}
	u.replaceNotServingFirst(ctx)
	u.planInterim()
	if err := u.findReloads(ctx); err != nil {
		return err
	}
	u.launches = checkLaunches(ctx, u.places, u.changes, u.dryRun)
	if err := rejectedLaunch(u.launches); err != nil {
		return err
	}
	u.quotas, err = checkQuotas(ctx, u.deployer, u.places, u.changes)
	return err
}

// noteProgram is the note that records which skyserve binary the VMs download.
const noteProgram = "program.json"

// applyChanges applies the changes, delivers the configurations and publishes the name.
func (u *upRun) applyChanges(ctx context.Context) error {
	u.useInterim()
	if err := u.recordRegions(); err != nil { // first: the stored file lacks the regions that this run removes
		return err
	}
	if err := u.svc.StoreSpec(u.text); err != nil {
		return err
	}
	if err := u.storeDesiredState(); err != nil {
		return err
	}
	if err := u.launchForInterim(ctx); err != nil {
		return u.applyError(ctx, err)
	}
	u.startEndedMembers(ctx)
	if err := u.informControllers(ctx); err != nil {
		return u.applyError(ctx, err)
	}
	u.announceRemoval(ctx, deploy.RemovedReplicas(u.changes.Changes))
	remaining, err := u.updateBalancers(ctx)
	if err != nil {
		return u.applyError(ctx, err)
	}
	plan, have, err := u.deployer.UpAndAwait(ctx, remaining, u.progress, u.awaitAddresses, u.printReplanned)
	u.usePlan(plan)
	if err == nil && cloud.UsesClouds(u.spec) { // local balancers are found through their objects
		err = storeAdminURLs(u.svc, adminURLs(have)...)
	}
	if err == nil {
		err = u.storeControllers(have)
	}
	if err == nil {
		err = u.deliverAndPublish(ctx, have)
	}
	if err == nil {
		err = u.grantRecords(ctx, have)
	}
	if err == nil && u.wait != waitNone {
		err = u.awaitCertificates(ctx, have)
	}
	if err == nil {
		err = u.reloadBalancers(ctx, have)
	}
	if err == nil && (u.wait != waitNone || u.interim != nil) { // names move only to models that serve
		err = u.awaitServing(ctx, have, u.isChanged)
	}
	if err == nil {
		err = u.applyFinal(ctx, have)
	}
	if err == nil {
		err = u.countReplicas(ctx)
	}
	if err == nil {
		err = u.forgetRegions(have)
	}
	if err != nil {
		return u.applyError(ctx, err)
	}
	u.printRemainder()
	return u.printResult(have, u.wait == waitReplicas)
}

// usePlan makes a plan that was made during the run the plan of the run, with the changes that were applied before it:
// replicas may run in other regions than planned first.
func (u *upRun) usePlan(p *deploy.MachinePlan) {
	use := func() {
		u.changes.Desired, u.changes.Missing = p.Desired, p.Missing
		u.changes.Changes = slices.Concat(p.Applied, p.Changes)
	}
	if u.observer == nil {
		use()
		return
	}
	u.observer.update(use) // it reads them meanwhile
}

// printReplanned prints that a machine has ended during the run, and uses the new plan.
func (u *upRun) printReplanned(ended *deploy.MachineEndedError, p *deploy.MachinePlan) {
	u.printEnded(ended)
	for i := range u.changes.Observed {
		if o := &u.changes.Observed[i]; o.ID == ended.ID && o.TerminatedReason == "" {
			o.TerminatedReason = ended.Reason // its cost has ended
		}
	}
	u.usePlan(p)
}

// printEnded prints that a machine has ended, which is planned again.
func (u *upRun) printEnded(ended *deploy.MachineEndedError) {
	u.printLine("%s has ended (%s): planning again", ended.ID, ended.Reason)
}

// awaitAddresses waits until each machine has its addresses and returns the objects.
func (u *upRun) awaitAddresses(ctx context.Context, p *deploy.MachinePlan) ([]provision.Object, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, u.timeout, fmt.Errorf("no address within %s", u.timeout))
	defer cancel()
	have, err := u.deployer.AwaitListed(ctx, p)
	if err != nil {
		return nil, err
	}
	return have, u.admitBalancers(ctx, have, nil)
}

// publicName returns the public name of a service with a record for each balancer; the zero
// Name if the service has none.
func publicName(spec *service.Spec, owner string, have []provision.Object) provision.PublicName {
	if cloud.UsesClouds(spec) || spec.DNS == nil {
		return deploy.PublicName(spec, owner, have)
	}
	n := deploy.PublicName(spec, owner, nil)
	n.Records, _ = localRecords(spec, have) // localNameProblems has checked them
	return n
}

// adminURLs returns the URLs at which operators reach the balancers.
func adminURLs(have []provision.Object) []string {
	var urls []string
	for _, o := range machinesOf(have) {
		if o.Kind == provision.KindBalancer && o.TerminatedReason == "" {
			urls = append(urls, deploy.AdminURL(o))
		}
	}
	return urls
}

// endpoints returns the public URL of the first balancer of each region, by place.
func (u *upRun) endpoints(have []provision.Object) map[string]string {
	endpoints := map[string]string{}
	for _, o := range have {
		if o.ID == provision.BalancerID(o.Region, 0) && o.PublicIP.IsValid() {
			endpoints[o.Region.ShortName()] = deploy.PublicURL(u.spec, o)
		}
	}
	return endpoints
}

// printResult prints the result.
func (u *upRun) printResult(have []provision.Object, ready bool) error {
	u.warnDrained()
	endpoints := u.endpoints(have)
	if u.dryRun {
		var err error
		if endpoints, err = u.plannedEndpoints(); err != nil {
			return err
		}
	}
	switch {
	case u.format.isResult():
		now, then := u.changes.CostPerHour()
		document := map[string]any{
			"service": u.spec.Name, "dry_run": u.dryRun, "ready": ready, "changes": deploy.ChangesOf(u.shownPlan().Changes),
			"cost_per_hour": map[string]float64{"now": now, "then": then}, "endpoints": endpoints, "error": nil,
			"dns": nil, "budget_per_hour": u.spec.BudgetPerHour(),
		}
		if u.spec.DNS != nil {
			document["dns"] = u.spec.DNS.Name
		}
		if cloud.UsesClouds(u.spec) {
			document["launches"], document["images"] = u.launches, u.shownImages()
			document["quotas"], document["plain_http"] = append([]cloud.QuotaNeed{}, u.quotas.needs...), u.spec.Balancer.TLS == nil
		}
		if err := u.format.writeResult(u.out, u.spec.Name, document); err != nil {
			return err
		}
	case u.dryRun:
		printChanges(u.out, u.spec.Name, u.shownPlan())
		printBudget(u.out, u.spec)
		printImages(u.out, u.shownImages())
		u.printSingleStore(u.out)
		u.interim.print(u.out)
		printPlainHTTP(u.out, u.spec)
		printFederation(u.out, u.spec, u.federationProblem)
		printLaunchChecks(u.out, u.launches)
		u.quotas.printQuotas(u.out)
	default:
		if err := u.printUp(endpoints); err != nil {
			return err
		}
	}
	if u.detailed && len(u.shownPlan().Changes) > 0 {
		return &exitError{code: exitChanges}
	}
	return nil
}

// printUp prints the service's endpoints and commands to try next.
func (u *upRun) printUp(endpoints map[string]string) error {
	state := "up"
	if u.wait != waitReplicas {
		state = "started"
	}
	if len(u.shownPlan().Changes) == 0 {
		state += " (no change)"
	}
	fmt.Fprintf(u.out, "%s is %s\n", u.spec.Name, state)
	first := ""
	if u.spec.DNS != nil && !cloud.UsesClouds(u.spec) {
		fmt.Fprintf(u.out, "  %-16s %s (%s)\n", "name", u.spec.DNS.Name, u.spec.DNS.Provider)
	} else if u.spec.DNS != nil {
		first = "http://" + u.spec.DNS.Name
		if u.spec.Balancer.TLS != nil {
			first = "https://" + u.spec.DNS.Name
		} else {
			first += ":" + strconv.Itoa(cloud.PortPublic)
		}
		fmt.Fprintf(u.out, "  %-16s %s\n", "name", first)
	}
	for _, r := range u.spec.Regions {
		place := r.Name.ShortName()
		if endpoints[place] == "" {
			continue
		}
		fmt.Fprintf(u.out, "  %-16s %s\n", place, endpoints[place])
		first = cmp.Or(first, endpoints[place])
	}
	printPlainHTTP(u.out, u.spec)
	printEmptyModels(u.out, u.spec)
	if !cloud.UsesClouds(u.spec) {
		fmt.Fprintf(u.out, "\nTry next:\n  %s\n", curlCommand(u.spec, first))
		if d := u.spec.DNS; d != nil && d.Provider == service.DNSEmbedded {
			fmt.Fprintf(u.out, "  %s\n", digCommand(d))
		}
		name := ""
		if home, err := local.OpenHome(); err == nil {
			if services, err := home.Services(); err == nil && len(services) > 1 {
				name = " " + u.spec.Name
			}
		}
		_, err := fmt.Fprintf(u.out, "  %s\n  skyserve top%s\n  skyserve plan%s\n  skyserve down %s\n", loadCommand(u.spec, name), name, name, u.spec.Name)
		return err
	}
	_, err := fmt.Fprintf(u.out, "\nTry next:\n  %s\n  skyserve status %s\n  skyserve down %s\n", curlCommand(u.spec, first), u.spec.Name, u.spec.Name)
	return err
}

// errDeclined is returned when the user declines the confirmation.
var errDeclined = errors.New("cancelled; nothing was changed")

// confirmBilled prompts for confirmation if the plan changes the bill. Without a terminal
// it requires --yes.
func confirmBilled(in io.Reader, errOut io.Writer, p *deploy.MachinePlan, yes bool) error {
	if yes || !p.ChangesBilling() {
		return nil
	}
	return confirmAction(in, errOut, "changes the bill")
}

// confirmAction prompts for confirmation of an action; does says what it does. It returns an
// error if there is no terminal, the user declines, or the service has changed meanwhile.
func confirmAction(in io.Reader, errOut io.Writer, does string) error {
	if !canPrompt(in) {
		return usage(fmt.Errorf("confirmation is required: this command %s, and stdin is not a terminal", does), "pass --yes to skip confirmation")
	}
	if locked, ok := in.(*lockedInput); ok {
		return locked.withoutLock(func() error { return promptPerson(locked.Reader, errOut) })
	}
	return promptPerson(in, errOut)
}

// promptPerson asks a person at a terminal whether to proceed.
func promptPerson(in io.Reader, errOut io.Writer) error {
	fmt.Fprint(errOut, "Proceed? [y/N] ")
	reply, err := readLine(in)
	if err != nil && !errors.Is(err, io.EOF) {
		fmt.Fprintln(errOut) // ends the line of the prompt
		return fmt.Errorf("reading the response: %w", err)
	}
	if !slices.Contains([]string{"y", "yes"}, strings.ToLower(strings.TrimSpace(reply))) {
		return errDeclined
	}
	return nil
}

// canPrompt reports whether in is a terminal, so that a person can confirm.
func canPrompt(in io.Reader) bool {
	if t, ok := in.(interface{ IsTerminal() bool }); ok {
		return t.IsTerminal()
	}
	f, isFile := in.(*os.File)
	return isFile && tui.IsTerminal(f)
}

// readLine reads up to the end of a line and not beyond it.
func readLine(in io.Reader) (string, error) {
	var line []byte
	for b := make([]byte, 1); ; {
		n, err := in.Read(b)
		if n == 1 && b[0] == '\n' || err != nil {
			return string(line), err
		}
		line = append(line, b[:n]...)
	}
}
