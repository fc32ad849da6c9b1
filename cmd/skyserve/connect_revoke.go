package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/identity"
	"skyserve/internal/printable"
	"skyserve/provision/local"
)

// operatorRow is the certificate of an operator or a controller in the JSON output.
type operatorRow struct {
	Name string `json:"name"`
	// Role is operator, controller, or issuer: the delegated authority of a controller.
	Role        string    `json:"role"`
	Fingerprint string    `json:"fingerprint"`
	ExpiresAt   time.Time `json:"expires_at"`
	Revoked     bool      `json:"revoked"`
	Self        bool      `json:"self"` // this machine's certificate
}

// runOperators lists the operators of a service, or revokes one.
func runOperators(cmd *cobra.Command, f connectFlags, args []string) error {
	if len(args) > 0 || f.invite || f.code != "" || f.list == (f.revoke != "") {
		return usage(errors.New("--list and --revoke cannot be combined with each other, --invite, --code or a URL"), "")
	}
	format, err := f.out.parse()
	if err != nil {
		return err
	}
	svc, err := findService(f.service)
	if err != nil {
		return err
	}
	unlock, err := svc.LockWait(cmd.Context(), nil)
	if err != nil {
		return err
	}
	defer unlock()
	o := &operators{svc: svc, home: identityOf(svc), now: time.Now(), out: cmd.OutOrStdout(), errOut: cmd.ErrOrStderr()}
	if err := o.openService(); err != nil {
		return err
	}
	if f.list {
		return o.printOperators(format)
	}
	if err := o.revoke(f.revoke); err != nil {
		return err
	}
	if err := o.printOperators(format); err != nil {
		return err
	}
	err = o.distributeRevocations(cmd.Context(), &f.clouds)
	recordOperator(cmd.Context(), o.svc, o.errOut, f.revoke, "revoked "+f.revoke)
	return err
}

// operators are the certificates of a service whose authority is on this machine.
type operators struct {
	svc         local.Service
	home        identity.Home
	now         time.Time
	out, errOut io.Writer
	self        operator
	certs       []*x509.Certificate
	// controller is set if a controller's certificate was revoked.
	controller bool
}

// openService reads the certificates.
func (o *operators) openService() (err error) {
	if o.self, err = openOperator(o.svc, false); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if o.self.authority == nil {
		return &exitError{code: exitCredentials, err: fmt.Errorf("reading the operators of %s: its certificate authority is not on this machine", o.svc.Name()), hint: "run this on the machine from which the service was deployed"}
	}
	o.certs, err = o.home.Recorded()
	return err
}

// isSelf reports whether a certificate is this machine's own.
func (o *operators) isSelf(c *x509.Certificate) (bool, error) {
	pair, err := o.self.party.Certificate()
	return err == nil && pair.Leaf.Equal(c), err
}

// revoke revokes the certificates with a name or fingerprint.
func (o *operators) revoke(who string) error {
	certs := identity.SelectCertificates(o.certs, who)
	if len(certs) == 0 {
		return notFound(fmt.Errorf("revoking %q: no operator of %s has that name or fingerprint", who, o.svc.Name()), "'skyserve connect --list' lists them")
	}
	for _, c := range certs {
		if name, err := identity.NameOf(c); err != nil || name.Role != identity.Operator {
			o.controller = true
		}
		self, err := o.isSelf(c)
		if err != nil {
			return err
		}
		if self {
			return usage(fmt.Errorf("revoking %q: this machine's own certificate cannot be revoked: this machine signs the others", who), "if several share the name, pass a fingerprint: skyserve connect --list")
		}
	}
	var err error
	o.self.revoked, err = o.home.Revoke(certs, o.now)
	return err
}

// rows returns the certificates that have not expired.
func (o *operators) rows() ([]operatorRow, error) {
	rows := []operatorRow{}
	for _, c := range o.certs {
		if o.now.After(c.NotAfter) {
			continue
		}
		name, err := identity.NameOf(c)
		if err != nil {
			return nil, err
		}
		self, err := o.isSelf(c)
		if err != nil {
			return nil, err
		}
		rows = append(rows, operatorRow{name.ID, string(name.Role), identity.Fingerprint(c), c.NotAfter.UTC(), o.self.revoked.Has(c), self})
	}
	return rows, nil
}

// printOperators lists the operators.
func (o *operators) printOperators(format outputFormat) error {
	rows, err := o.rows()
	if err != nil {
		return err
	}
	table := operatorTable(rows)
	people := slices.DeleteFunc(slices.Clone(rows), func(r operatorRow) bool { return r.Role != string(identity.Operator) })
	others := slices.DeleteFunc(rows, func(r operatorRow) bool { return r.Role == string(identity.Operator) })
	list := o.self.revoked.Number()
	document := map[string]any{"service": o.svc.Name(), "revocation_list": list, "operators": people, "controllers": others}
	document["list"] = list // the former key
	return format.write(o.out, document, table)
}

// operatorTable returns the table of the operators.
func operatorTable(rows []operatorRow) list {
	t := list{titles: []string{"NAME", "ROLE", "FINGERPRINT", "EXPIRES", "REVOKED"}, fitting: printable.Fitting{Optional: []string{"ROLE"}, Whole: []string{"NAME", "EXPIRES"}}}
	for _, r := range rows {
		name, state := r.Name, "no"
		if r.Self {
			name += " (this machine)"
		}
		if r.Revoked {
			state = "yes"
		}
		t.rows = append(t.rows, listRow{name: r.Name, cells: []string{name, roleText(r.Role), r.Fingerprint, r.ExpiresAt.Format(time.DateOnly), state}})
	}
	return t
}

// roleText returns the role of a certificate as people read it.
func roleText(role string) string {
	if role == "issuer" {
		return "delegated authority"
	}
	return role
}

// distributeRevocations sends the revocation list to all machines of the service.
func (o *operators) distributeRevocations(ctx context.Context, clouds *cloudFlags) error {
	spec, err := deployedSpec("", o.svc)
	if err != nil {
		return err
	}
	if spec == nil {
		return failed(fmt.Errorf("sending the revocation list to the machines of %s: its service.yaml is missing or invalid", o.svc.Name()),
			"set identity.revoked in the balancers' configurations to this file: "+o.home.RevokedFile())
	}
	v, err := openView(ctx, clouds, o.svc, "revoking certificates")
	if err != nil {
		return err
	}
	listing, err := v.inspector.List(ctx)
	if err != nil {
		return cloudError(err)
	}
	h := &deploy.Delivery{Service: spec.Name, Party: o.self.party, Authority: o.self.authority, Revoked: o.self.revoked, Machines: listing.Machines()}
	updated, err := h.Revoke(ctx)
	if o.controller {
		fmt.Fprintf(o.errOut, "the controller's certificate is revoked; 'skyserve up %s' issues a new one\n", upFile(o.svc))
	}
	fmt.Fprintf(o.errOut, "%d of %d machines have revocation list %d\n", updated, len(h.Machines), o.self.revoked.Number())
	for _, problem := range listing.Problems() {
		err = errors.Join(err, errors.New(problem))
	}
	if err == nil {
		return nil
	}
	return &exitError{code: exitPartial, err: fmt.Errorf("sending the revocation list to the machines of %s: %w", o.svc.Name(), err), hint: "retry; 'skyserve up' sends the list too"}
}
