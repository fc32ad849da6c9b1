package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"skyserve/internal/controller/fleet"
	"skyserve/internal/node"
	"skyserve/internal/printable"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
	"skyserve/provision/local"
)

// cloudView is how this machine's operator looks at a service with regions in clouds.
type cloudView struct {
	svc       local.Service
	spec      *service.Spec
	operator  operator
	inspector *fleet.Inspector
}

// openCloudView opens what it takes to look at a service in clouds; doing is what for.
func openCloudView(ctx context.Context, clouds *cloudFlags, svc local.Service, spec *service.Spec, doing string) (*cloudView, error) {
	v := &cloudView{svc: svc, spec: spec}
	var err error
	if v.operator, err = operatorOf(svc, doing, "run this where it was brought up; 'skyserve connect' makes another machine an operator"); err != nil {
		return nil, err
	}
	places, err := clouds.placesOf(ctx, spec)
	if err != nil {
		return nil, cloudError(err)
	}
	var program machineProgram
	if err := svc.Note(noteProgram, &program); err != nil {
		return nil, err
	}
	var zone fleet.HostedZone
	if err := svc.Note(noteZone, &zone); err != nil {
		return nil, err
	}
	f := newFleet(spec, v.operator.owner, places, program)
	f.ZoneID = zone.ID
	if program.URL == "" {
		f.UserData = nil
	}
	v.inspector = &fleet.Inspector{
		Fleet: f, Lists: map[service.Region]fleet.Lister{}, Ask: v.ask, Operator: v.operator.ends(), File: svc.SpecFile(),
		Certificate: v.handover(nil).Certificate,
	}
	if v.operator.authority != nil {
		if v.inspector.Enrolments, err = fleet.ReadEnrolments(svc); err != nil {
			return nil, err
		}
	}
	for _, r := range cloud.Regions(spec) {
		if v.inspector.Lists[r], err = clouds.placesOf(ctx, spec, r); err != nil {
			return nil, cloudError(err)
		}
	}
	return v, nil
}

// handover is the way to the agents of machines.
func (v *cloudView) handover(have []provision.Object) *fleet.Handover {
	return &fleet.Handover{Service: v.spec.Name, Party: v.operator.party, Have: have}
}

// ask asks the agent of a machine how it does.
func (v *cloudView) ask(ctx context.Context, have []provision.Object, o provision.Object) (node.Status, error) {
	h := v.handover(have)
	return h.Operator(o).Status(ctx, h.Machine(o))
}

// look is the service as it is now.
func (v *cloudView) look(ctx context.Context) (statusPage, error) {
	status, err := v.inspector.Status(ctx)
	if err != nil {
		return statusPage{}, cloudError(err)
	}
	return statusPage{status, func(w io.Writer) error { return v.write(w, status) }}, nil
}

// write writes a status as a table for people.
func (v *cloudView) write(w io.Writer, s *fleet.Status) error {
	fmt.Fprintf(w, "%s  %s  $%.2f/h\n", s.Service, s.State, s.CostPerHour)
	printPlainHTTP(w, v.spec)
	for _, a := range s.Alerts {
		fmt.Fprintln(w, a.Line())
	}
	for _, problem := range s.Problems {
		fmt.Fprintf(w, "problem: %s\n", problem)
	}
	if c := s.Controller; c != nil {
		fmt.Fprintf(w, "controller: %s on %s; store: %s\n", strings.TrimSpace(string(c.State)+" "+c.Reason), c.Machine, s.Store)
	} else {
		fmt.Fprintf(w, "controller: none; 'skyserve up %s' starts one\n", v.svc.SpecFile())
	}
	if ends := certificateEnd(s); ends != nil && v.spec.DNS != nil {
		fmt.Fprintf(w, "certificate: for %s until %s\n", v.spec.DNS.Name, ends.UTC().Format(time.DateOnly))
	}
	for _, i := range s.Images {
		pinned := "by tag: it can change"
		if i.Pinned {
			pinned = "pinned by digest"
		}
		fmt.Fprintf(w, "image of %s: %s (%s)\n", i.Model, i.Image, pinned)
	}
	t := printable.NewTable(w)
	t.Rowf("\nREGION\tKIND\tID\tSTATE\tADDRESS\tMODEL\tREASON\tOFFERING\t$/H")
	for _, r := range s.Regions {
		for _, m := range r.Balancers {
			writeMachine(t, r.Name, provision.KindBalancer, m)
		}
		for _, m := range r.Replicas {
			writeMachine(t, r.Name, provision.KindReplica, m)
		}
	}
	if len(s.Drift) > 0 {
		t.Rowf("\nnot as it should be; repair it: skyserve up %s", v.svc.SpecFile())
	}
	for _, c := range s.Drift {
		t.Rowf("  %s %s\t%s\t%s\t%s", mark(c.Action), c.Kind, c.ID, c.Region, c.Reason)
	}
	return t.Flush()
}

// certificateEnd is when the first certificate ends of those that balancers have; nil where none
// tells.
func certificateEnd(s *fleet.Status) (ends *time.Time) {
	for _, r := range s.Regions {
		for _, b := range r.Balancers {
			if c := b.Certificate; c != nil && c.ExpiresAt != nil && (ends == nil || c.ExpiresAt.Before(*ends)) {
				ends = c.ExpiresAt
			}
		}
	}
	return ends
}

// writeMachine writes the row of a machine.
func writeMachine(t *printable.Table, region service.Region, kind provision.Kind, m fleet.MachineStatus) {
	var offering, price string
	if m.Offering != nil {
		offering = m.Offering.String()
	}
	if m.CostPerHour > 0 {
		price = fmt.Sprintf("%.4f", m.CostPerHour)
	}
	statusRow(t, string(region), string(kind), m.ID, string(m.State), cmp.Or(m.Endpoint, m.URL), m.Model, m.Reason, offering, price)
}
