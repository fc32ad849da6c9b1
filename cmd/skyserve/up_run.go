package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"skyserve/internal/agent"
	"skyserve/internal/controller/fleet"
	"skyserve/internal/identity"
	"skyserve/internal/printable"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
	"skyserve/provision/local"
	"skyserve/tui"
)

// upRun is one run of `skyserve up`.
type upRun struct {
	*up
	in       io.Reader
	svc      local.Service
	spec     *service.Spec
	text     []byte
	operator operator
	// enrolments are the balancers that this machine's operator launched.
	enrolments *fleet.Enrolments
	strangers  []provision.Object // that claim to be balancers
	places     provision.Places
	zone       provision.Zone
	// hostedZone is where balancers write challenges of an authority.
	hostedZone fleet.HostedZone
	fleet      *fleet.Fleet
	changes    *fleet.Plan
	program    machineProgram
	// only is that of its fleet: not nil where replicas alone are changed.
	only   func(*fleet.Plan, provision.Change) bool
	quotas quotaView
	// leaving are the replicas that balancers are to use no more.
	leaving map[string]bool
	// reloads are the machines that take up another configuration.
	reloads provision.Changes
}

// bringUp brings a service up.
func bringUp(ctx context.Context, u *up, in io.Reader, spec *service.Spec, text []byte) error {
	if err := cloud.Check(spec); err != nil {
		return usage(fmt.Errorf("reading %s: %w", u.file, err), "")
	}
	if err := misnamed(spec); err != nil {
		return usage(fmt.Errorf("reading %s: %w", u.file, err), "")
	}
	home, err := local.OpenHome()
	if err != nil {
		return err
	}
	svc, err := home.Service(spec.Name)
	if err != nil {
		return err
	}
	c := &upRun{up: u, in: in, svc: svc, spec: spec, text: text}
	if !cloud.Rents(spec) {
		c.clouds.here = &svc
	}
	unlock, err := svc.LockSoon(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := c.open(ctx); err != nil {
		svc.RemoveUnused()
		return cloudError(specUsage(err))
	}
	if u.dryRun {
		svc.RemoveUnused()
		return c.finish(nil, false)
	}
	if err := c.confirm(); err != nil {
		svc.RemoveUnused()
		return err
	}
	return c.carryOut(ctx)
}

// earlierError is the error of machines that an earlier version of this program launched under
// names that say no kind, such as those at Google: what they are cannot be told, and others beside
// them would be a second service. nil without any.
func earlierError(have []provision.Object, name, file string) error {
	var handles []string
	for _, o := range have {
		if o.Kind == "" {
			handles = append(handles, o.Handle)
		}
	}
	if len(handles) == 0 {
		return nil
	}
	return failed(fmt.Errorf("%s: an earlier version of skyserve launched it, under a name that does not say what it is", strings.Join(handles, ", ")),
		fmt.Sprintf("skyserve down %s, then: skyserve up %s", name, file))
}

// confirm makes sure that what machines are to be handed is there, shows what will change and which
// quotas that meets, and asks.
func (u *upRun) confirm() error {
	if err := u.checkSecrets(); err != nil {
		return err
	}
	printChanges(u.talk, u.spec.Name, u.shown())
	printPlainHTTP(u.talk, u.spec)
	u.quotas.print(u.talk)
	if err := u.quotas.admit(u.in, u.yes); err != nil {
		return err
	}
	return agree(u.in, u.talk, u.changes, u.yes)
}

// checkSecrets makes sure that what machines are to be handed is there.
func (u *upRun) checkSecrets() error {
	if err := fleet.CheckSecrets(u.spec, fleet.LocalSecrets); err != nil {
		return usage(fmt.Errorf("reading what %s refers to: %w", u.file, err), "export the variables and put the files there that it names")
	}
	return nil
}

// open finds who this machine is to the service, and what has to change.
func (u *upRun) open(ctx context.Context) (err error) {
	if u.operator, err = openOperator(u.svc, true); err != nil {
		return err
	}
	if u.enrolments, err = fleet.ReadEnrolments(u.svc); err != nil {
		return err
	}
	var before machineProgram
	if err := u.svc.Note(noteProgram, &before); err != nil {
		return err
	}
	if cloud.Rents(u.spec) {
		if u.program, err = findProgram(ctx, u.programURL, before); err != nil {
			return err
		}
	}
	if u.places, err = u.clouds.placesOf(ctx, u.spec); err != nil {
		return err
	}
	if u.zone, err = u.clouds.zone(ctx, u.spec, u.svc); err != nil {
		return err
	}
	if u.hostedZone, err = u.clouds.hostedZone(ctx, u.spec); err != nil {
		return err
	}
	u.fleet = newFleet(u.spec, u.operator.owner, u.places, u.program)
	u.fleet.ZoneID = u.hostedZone.ID
	if u.leaving == nil {
		decided, err := fleet.ReadDecisions(decisionsFile(u.svc))
		if err != nil {
			return err
		}
		u.leaving = decided.Idle()
	}
	u.fleet.Only, u.fleet.Enrolments = u.only, u.enrolments
	u.fleet.Drain = func(ctx context.Context, o provision.Object) {
		h := fleet.Handover{Party: u.operator.party, Have: u.changes.Have}
		h.Drain(ctx, o)
	}
	if u.upgrade && !cloud.Rents(u.spec) {
		if _, u.fleet.Build, err = local.Executable(); err != nil {
			return err
		}
	}
	if u.changes, err = u.fleet.Plan(ctx); err != nil {
		return err
	}
	if err := earlierError(u.changes.Have, u.spec.Name, u.file); err != nil {
		return err
	}
	if err := earlierHere(u.changes.Have, u.spec.Name, u.file); err != nil {
		return err
	}
	if err := u.admitBalancers(ctx, u.changes.Have, u.replace); err != nil {
		return err
	}
	if err := checkName(ctx, u.zone, u.spec, u.operator.owner); err != nil {
		return err
	}
	if err := u.replaceDead(ctx); err != nil {
		return err
	}
	if err := u.findReloads(ctx); err != nil {
		return err
	}
	u.quotas, err = viewQuotas(ctx, u.fleet, u.places, u.changes)
	return err
}

// noteProgram is where it is noted which program the machines got.
const noteProgram = "program.json"

// carryOut makes what is missing, hands everything over and names it.
func (u *upRun) carryOut(ctx context.Context) error {
	if err := u.checkPorts(); err != nil {
		u.svc.RemoveUnused()
		return err
	}
	if err := u.svc.Keep(u.text); err != nil {
		return err
	}
	if cloud.Rents(u.spec) {
		if err := u.svc.TakeNote(noteProgram, u.program); err != nil {
			return err
		}
	} else if err := u.keepHere(); err != nil {
		return err
	}
	if err := u.svc.TakeNote(noteZone, u.hostedZone); err != nil {
		return err
	}
	if err := u.inform(ctx); err != nil {
		return u.failure(ctx, err)
	}
	plan, err := u.fleet.Up(ctx, u.changes, u.progress)
	if err != nil {
		return u.failure(ctx, err)
	}
	u.changes.Missing = plan.Missing
	have, err := u.located(ctx, plan)
	if err == nil && cloud.Rents(u.spec) { // those here are found by their objects
		err = keepAdmins(u.svc, adminURLs(have)...)
	}
	if err == nil {
		err = u.handOverAndPublish(ctx, have)
	}
	if err == nil && u.wait {
		err = u.awaitCertificates(ctx, have)
	}
	if err == nil {
		err = u.reload(ctx, have)
	}
	if err == nil && u.wait {
		err = u.awaitServing(ctx, have, u.isChanged)
	}
	if err != nil {
		return u.failure(ctx, err)
	}
	return u.finish(have, u.wait)
}

// located is what there is once each machine has its addresses.
func (u *upRun) located(ctx context.Context, p *fleet.Plan) ([]provision.Object, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, u.timeout, fmt.Errorf("no address within %s", u.timeout))
	defer cancel()
	have, err := u.fleet.Located(ctx, p)
	if err != nil {
		return nil, err
	}
	return have, u.admitBalancers(ctx, have, nil)
}

// publicName is the public name of a service with the balancers there are; none where it
// has none.
func publicName(spec *service.Spec, owner string, have []provision.Object) provision.Name {
	if spec.DNS == nil {
		return provision.Name{}
	}
	n := provision.Name{Name: spec.DNS.Name, Zone: spec.DNS.Zone, Service: spec.Name, Owner: owner, Routing: provision.Routing(spec.DNS.Routing), TTL: spec.DNS.TTL, Private: spec.DNS.Private}
	if !cloud.Rents(spec) {
		n.Records, _ = recordsHere(spec, have) // misnamed saw to what could be wrong with them
		return n
	}
	for _, o := range have {
		if o.Kind == provision.KindBalancer && o.Gone == "" {
			n.Records = append(n.Records, provision.Record{ID: o.ID, Region: o.Region, Address: o.PublicIP, Check: fleet.PublicURL(spec, o) + "/readyz"})
		}
	}
	return n
}

// adminURLs are where operators reach the balancers.
func adminURLs(have []provision.Object) []string {
	var urls []string
	for _, o := range machinesOf(have) {
		if o.Kind == provision.KindBalancer && o.Gone == "" {
			urls = append(urls, fleet.AdminURL(o))
		}
	}
	return urls
}

// endpoints is the public URL of the first balancer of each region, by place.
func (u *upRun) endpoints(have []provision.Object) map[string]string {
	endpoints := map[string]string{}
	for _, o := range have {
		if o.ID == provision.BalancerID(o.Region, 0) && o.PublicIP.IsValid() {
			endpoints[o.Region.Place()] = fleet.PublicURL(u.spec, o)
		}
	}
	return endpoints
}

// finish prints the result.
func (u *upRun) finish(have []provision.Object, ready bool) error {
	endpoints := u.endpoints(have)
	if u.dryRun {
		var err error
		if endpoints, err = u.plannedEndpoints(); err != nil {
			return err
		}
	}
	switch {
	case u.output == "json":
		now, then := u.changes.CostPerHour()
		document := map[string]any{
			"service": u.spec.Name, "dry_run": u.dryRun, "ready": ready, "changes": fleet.Told(u.shown().Changes),
			"cost_per_hour": map[string]float64{"now": now, "then": then}, "endpoints": endpoints, "error": nil,
			"dns": nil,
		}
		if u.spec.DNS != nil {
			document["dns"] = u.spec.DNS.Name
		}
		if cloud.Rents(u.spec) {
			document["quotas"], document["plain_http"] = append([]cloud.QuotaNeed{}, u.quotas.needs...), u.spec.Balancer.TLS == nil
		}
		if err := json.NewEncoder(u.out).Encode(document); err != nil {
			return err
		}
	case u.dryRun:
		printChanges(u.out, u.spec.Name, u.shown())
		printPlainHTTP(u.out, u.spec)
		u.quotas.print(u.out)
	default:
		if err := u.printUp(endpoints); err != nil {
			return err
		}
	}
	if u.detailed && len(u.shown().Changes) > 0 {
		return &exitError{code: exitChanges}
	}
	return nil
}

// printUp says where the service is and what to try next.
func (u *upRun) printUp(endpoints map[string]string) error {
	state := "up"
	if !u.wait {
		state = "started"
	}
	if len(u.shown().Changes) == 0 {
		state += " (no change)"
	}
	fmt.Fprintf(u.out, "%s is %s\n", u.spec.Name, state)
	first := ""
	if u.spec.DNS != nil && !cloud.Rents(u.spec) {
		fmt.Fprintf(u.out, "  %-16s %s (%s)\n", "name", u.spec.DNS.Name, u.spec.DNS.Provider)
	} else if u.spec.DNS != nil {
		first = "http://" + u.spec.DNS.Name
		if u.spec.Balancer.TLS != nil {
			first = "https://" + u.spec.DNS.Name
		} else {
			first += ":" + strconv.Itoa(cloud.PortPublic)
		}
		fmt.Fprintf(u.out, "  %-16s %s\n", "everywhere", first)
	}
	for _, r := range u.spec.Regions {
		place := r.Name.Place()
		if endpoints[place] == "" {
			continue
		}
		fmt.Fprintf(u.out, "  %-16s %s\n", place, endpoints[place])
		first = cmp.Or(first, endpoints[place])
	}
	printPlainHTTP(u.out, u.spec)
	if !cloud.Rents(u.spec) {
		fmt.Fprintf(u.out, "\nTry next:\n  %s\n", curlOf(u.spec, first))
		if d := u.spec.DNS; d != nil && d.Provider == service.DNSEmbedded {
			fmt.Fprintf(u.out, "  %s\n", dig(d))
		}
		_, err := fmt.Fprintf(u.out, "  skyserve load\n  skyserve top\n  skyserve plan\n  skyserve down %s\n", u.spec.Name)
		return err
	}
	_, err := fmt.Fprintf(u.out, "\nTry next:\n  %s\n  skyserve status %s\n  skyserve down %s\n", curlOf(u.spec, first), u.spec.Name, u.spec.Name)
	return err
}

// failure chooses the exit code of what failed while machines were made.
func (u *upRun) failure(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		fmt.Fprintf(u.talk, "stopped; 'skyserve up %s' takes up where this ended\n", u.file)
		return fmt.Errorf("bringing %s up: %w", u.spec.Name, context.Canceled)
	}
	if u.output == "json" && u.clouds.here != nil {
		document := map[string]any{"service": u.spec.Name, "dry_run": false, "ready": false, "changes": fleet.Told(u.shown().Changes), "endpoints": map[string]string{}, "error": err.Error(), "dns": nil}
		if printing := json.NewEncoder(u.out).Encode(document); printing != nil {
			return printing
		}
	}
	var coded *exitError
	if known := cloudError(strangersHint(err, u.file)); errors.As(known, &coded) {
		return known
	}
	return &exitError{code: exitPartial, err: err, hint: u.afterFailure(err)}
}

// unknownField is how an agent refuses what only later versions of it know.
const unknownField = "json: unknown field"

// afterFailure is what to do next where only a part was done. Trying again is in vain where a
// machine refuses what it is handed.
func (u *upRun) afterFailure(err error) string {
	var refusal *agent.Refusal
	switch {
	case errors.As(err, &refusal) && strings.Contains(refusal.Message, unknownField):
		return fmt.Sprintf("the machine runs an earlier version of skyserve; put this one for Linux where machines can reach it, then: skyserve up %s --program URL", u.file)
	case errors.Is(err, identity.ErrPin):
		return fmt.Sprintf("find out who changed that machine, or answers in its place, then: skyserve up %s --replace ID", u.file)
	}
	if u.clouds.here != nil || u.only != nil {
		return fmt.Sprintf("see 'skyserve status %s' and 'skyserve logs %s', then run it again", u.spec.Name, u.spec.Name)
	}
	return fmt.Sprintf("what could be had stands and is billed; 'skyserve up %s' tries again, 'skyserve down %s' gives it back", u.file, u.spec.Name)
}

// cloudError gives an error about credentials its exit code and says what to do next.
func cloudError(err error) error {
	var credentials *provision.CredentialsError
	var owned *provision.OwnedError
	switch {
	case errors.As(err, &credentials):
		return &exitError{code: exitCredentials, err: err, hint: credentials.Hint}
	case errors.As(err, &owned):
		return failed(err, "choose another name, or become an operator of it: skyserve connect")
	}
	return err
}

// errDeclined is the answer no.
var errDeclined = errors.New("nothing was changed")

// agree asks before something billed is made or removed. Where nobody can be asked
// it wants --yes.
func agree(in io.Reader, talk io.Writer, p *fleet.Plan, yes bool) error {
	if yes || !p.Bills() {
		return nil
	}
	return ask(in, talk, "changes what is billed")
}

// ask asks a person whether to go on, since this does something; an error where nobody can
// be asked, or says no.
func ask(in io.Reader, talk io.Writer, does string) error {
	if !canAsk(in) {
		return usage(fmt.Errorf("this %s, and there is no terminal to ask at", does), "--yes agrees to it")
	}
	fmt.Fprint(talk, "Go on? [y/N] ")
	answer, err := readLine(in)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("reading the answer: %w", err)
	}
	if !slices.Contains([]string{"y", "yes"}, strings.ToLower(strings.TrimSpace(answer))) {
		return errDeclined
	}
	return nil
}

// canAsk says whether a person can be asked.
func canAsk(in io.Reader) bool {
	f, isFile := in.(*os.File)
	return isFile && tui.IsTerminal(f)
}

// readLine reads up to the end of a line and no further.
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

// printChanges shows what will change in clouds, line by line, with what it
// costs an hour.
func printChanges(w io.Writer, name string, p *fleet.Plan) {
	if len(p.Changes) == 0 {
		fmt.Fprintf(w, "%s: no change\n", name)
		return
	}
	now, then := p.CostPerHour()
	plural := "s"
	if len(p.Changes) == 1 {
		plural = ""
	}
	fmt.Fprintf(w, "%s: %d change%s, cost $%.2f/h -> $%.2f/h\n", name, len(p.Changes), plural, now, then)
	t := printable.NewTable(w)
	for _, c := range p.Changes {
		t.Rowf("  %s %s\t%s\t%s\t%s\t%s\t%s", mark(c.Action), c.Kind(), c.ID(), c.Region(), price(c), machine(c), c.Reason)
	}
	_ = t.Flush() // into a buffer or onto a screen: there is nowhere else to say it
	if slices.ContainsFunc(p.Changes, priceless) {
		fmt.Fprintln(w, "  ?: a price that is not known; models[].gpus[].price and regions[].reserved say it")
	}
	printPrices(w, p)
}

// printPlainHTTP warns of a service that serves plain HTTP to the world.
func printPlainHTTP(w io.Writer, spec *service.Spec) {
	if warning := fleet.PlainHTTPWarning(spec); warning != "" {
		fmt.Fprintln(w, warning)
	}
}

func mark(a provision.Action) string {
	switch a {
	case provision.ActionLaunch:
		return "+"
	case provision.ActionTerminate:
		return "-"
	case provision.ActionReplace, provision.ActionReload, provision.ActionMend:
	}
	return "~"
}

// priceless says whether a change makes a machine of which nobody knows the price.
func priceless(c provision.Change) bool {
	return !cloud.IsHere(c.Region()) && len(c.Want.Offers) > 0 && c.Want.Offers[0].PricePerHour == 0
}

// price is what a change adds to the bill of an hour.
func price(c provision.Change) string {
	switch {
	case priceless(c):
		return "?"
	case c.CostPerHour == 0:
		return ""
	case c.CostPerHour < 0:
		return fmt.Sprintf("-$%.4f/h", -c.CostPerHour)
	}
	return fmt.Sprintf("+$%.4f/h", c.CostPerHour)
}

// machine is what an object will run on, and in how many ways it can be had; of one
// that goes, what it runs on.
func machine(c provision.Change) string {
	offers := c.Want.Offers
	if cloud.IsHere(c.Region()) {
		return ""
	}
	if len(offers) == 0 {
		if o := c.Have.Offering; o != nil {
			return o.String()
		}
		return ""
	}
	text := offers[0].String()
	if len(offers) > 1 {
		text += fmt.Sprintf(", or %d others", len(offers)-1)
	}
	return text
}
