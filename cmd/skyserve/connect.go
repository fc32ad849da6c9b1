package main

import (
	"cmp"
	"context"
	"crypto"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"skyserve/internal/identity"
	"skyserve/internal/telemetry"
	"skyserve/provision/local"
)

// fileAdmins keeps, in a service's directory, the admin URLs that connect was given.
const fileAdmins = "admins.json"

// connectPoll is how often a mailbox is looked at.
const connectPoll = 500 * time.Millisecond

// connectFlags is what the command line of skyserve connect says.
type connectFlags struct {
	url, code, service, as, revoke, output string
	invite, list                           bool
	clouds                                 cloudFlags
}

func newConnectCmd() *cobra.Command {
	var f connectFlags
	cmd := &cobra.Command{
		Use:   "connect [URL]",
		Short: "Make this machine's user an operator of a running service",
		Long: `Make this machine's user an operator of a running service, by the admin address
of any of its balancers.

Somebody who brought the service up runs 'connect URL --invite' and tells the code
that it prints to the one who is to be an operator; it waits, at most 15 minutes,
and signs. The other runs 'connect URL --code CODE'. The code is good once. It names
the service's certificate authority, so that nobody in between can take its place;
the certificate is good for 90 days, and another 'connect' renews it.

Where the service was brought up, 'connect --list' shows the operators and what the
controller was handed, and 'connect --revoke NAME|FINGERPRINT' takes one out: all
machines are told, and refuse the certificate within a minute. One that does not
answer is told by the next 'up', which also hands a revoked controller another
certificate.`,
		Example: `  skyserve connect https://203.0.113.7:8443 --invite
  skyserve connect https://203.0.113.7:8443 --code CODE
  skyserve connect --list
  skyserve connect --revoke bob@laptop`,
		Args: argsBetween(0, 1, "URL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.list || f.revoke != "" {
				return runOperators(cmd, f, args)
			}
			if len(args) == 0 {
				return usage(errors.New("reading the arguments: want the admin URL of a balancer"), "'skyserve status' shows the admin addresses")
			}
			f.url = strings.TrimRight(args[0], "/")
			return runConnect(cmd, f)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&f.invite, "invite", false, "invite somebody: print a code, wait and sign")
	flags.StringVar(&f.code, "code", "", "the `CODE` that the operator who invites was given")
	flags.StringVar(&f.service, "service", "", "`NAME` of the service, where this machine knows several (--invite, --list, --revoke)")
	flags.StringVar(&f.as, "as", "", "`NAME` to go by among the operators (default user@host)")
	flags.BoolVar(&f.list, "list", false, "show the operators of a service that was brought up here")
	flags.StringVar(&f.revoke, "revoke", "", "take out the operator or the controller `NAME|FINGERPRINT`")
	flags.StringVarP(&f.output, "output", "o", "text", "text or json (--list, --revoke)")
	f.clouds.add(flags)
	return cmd
}

func runConnect(cmd *cobra.Command, f connectFlags) error {
	switch {
	case !strings.HasPrefix(f.url, "https://"):
		return usage(fmt.Errorf("reading the arguments: want the https URL of a balancer's admin address, got %q", f.url), "")
	case f.invite == (f.code != ""):
		return usage(errors.New("reading the flags: want one of --invite and --code"), "run --invite where the service was brought up, then --code here")
	case f.invite:
		return runInvite(cmd, f)
	}
	return runAccept(cmd, f)
}

// runInvite prints a code and certifies whoever comes with it.
func runInvite(cmd *cobra.Command, f connectFlags) error {
	svc, err := findService(f.service)
	if err != nil {
		return err
	}
	authority, err := identityOf(svc).Authority()
	if errors.Is(err, fs.ErrNotExist) {
		return &exitError{code: exitCredentials, err: fmt.Errorf("inviting to %s: its certificate authority is not on this machine", svc.Name()), hint: "only the machine that brought the service up can invite"}
	}
	if err != nil {
		return err
	}
	self, err := identityOf(svc).Operator(operatorName(), time.Now())
	if err != nil {
		return err
	}
	api := telemetry.NewClient(f.url, telemetry.SecureClient(self.Client(identity.Balancer)))
	invite := identity.NewInvite(authority)
	if err := api.OpenInvite(cmd.Context(), invite.Mailbox()); err != nil {
		return failed(fmt.Errorf("inviting to %s: %w", svc.Name(), err), "")
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "On the other machine, within %s:\n\n", telemetry.InviteLife)
	fmt.Fprintf(cmd.OutOrStdout(), "skyserve connect %s --code %s\n", f.url, invite.Text())
	fmt.Fprintln(cmd.ErrOrStderr(), "\nWaiting to sign. Whoever has the code becomes an operator: tell it over a channel that you trust.")
	who, ends, err := certifyInvited(cmd.Context(), api, invite, authority, identityOf(svc).Record)
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), closeTimeout)
		defer cancel()
		return failed(errors.Join(fmt.Errorf("inviting to %s: %w", svc.Name(), err), api.CloseInvite(ctx, invite.Mailbox())), "invite again")
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s is an operator of %s until %s.\n", who.ID, svc.Name(), ends.Format(time.DateOnly))
	return nil
}

// closeTimeout bounds the closing of an invitation, which ends by itself too.
const closeTimeout = 3 * time.Second

// certifyInvited waits for who was invited, signs and records it. The answer stays for the other
// to fetch when this process has ended.
func certifyInvited(ctx context.Context, api *telemetry.Client, invite identity.Invite, authority *identity.Authority, record func(*x509.Certificate) error) (who identity.Name, ends time.Time, err error) {
	var asked *telemetry.InviteRequest
	err = poll(ctx, func(ctx context.Context) (done bool, err error) {
		asked, err = api.InviteRequest(ctx, invite.Mailbox())
		return asked != nil, err
	})
	if err != nil {
		return who, ends, err
	}
	chain, err := invite.Accept(authority, asked.CSR, asked.Proof, time.Now())
	if err != nil {
		refusal := telemetry.InviteAnswer{Refused: err.Error()}
		return who, ends, errors.Join(err, api.AnswerInvite(ctx, invite.Mailbox(), refusal))
	}
	if who, err = identity.NameOf(chain[0]); err == nil {
		err = record(chain[0])
	}
	if err == nil {
		err = api.AnswerInvite(ctx, invite.Mailbox(), telemetry.InviteAnswer{Chain: string(identity.EncodeChain(chain))})
	}
	return who, chain[0].NotAfter, err
}

// poll asks until it is done, fails, or ctx ends.
func poll(ctx context.Context, ask func(context.Context) (done bool, err error)) error {
	ticker := time.NewTicker(connectPoll)
	defer ticker.Stop()
	for {
		done, err := ask(ctx)
		if done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}

// runAccept asks for a certificate with a code, and keeps it.
func runAccept(cmd *cobra.Command, f connectFlags) error {
	invite, err := identity.ParseInvite(f.code)
	if err != nil {
		return usage(fmt.Errorf("--code: %w", err), "")
	}
	key, err := identity.NewKey()
	if err != nil {
		return err
	}
	chain, err := askCertificate(cmd.Context(), f, invite, key)
	if err != nil {
		return failed(fmt.Errorf("connecting to %s: %w", f.url, err), "ask for another invitation: a code is good once, for 15 minutes, at one balancer")
	}
	who, err := invite.Accepted(chain, key, time.Now())
	if err != nil {
		return failed(fmt.Errorf("connecting to %s: %w", f.url, err), "")
	}
	home, err := local.OpenHome()
	if err != nil {
		return err
	}
	svc, err := home.Service(who.Service)
	if err != nil {
		return err
	}
	if err := identityOf(svc).KeepOperator(chain, key); err != nil {
		return failed(err, "")
	}
	if err := keepAdmins(svc, f.url); err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s is an operator of %s until %s\n", who.ID, who.Service, chain[0].NotAfter.Format(time.DateOnly))
	return nil
}

// askCertificate puts a request into the mailbox of an invite and waits for the answer.
func askCertificate(ctx context.Context, f connectFlags, invite identity.Invite, key crypto.Signer) ([]*x509.Certificate, error) {
	csr, proof, err := invite.Request(key, cmp.Or(f.as, operatorName()))
	if err != nil {
		return nil, err
	}
	hc := telemetry.SecureClient(identity.ToOwner(invite.Owner(), time.Now(), identity.Balancer))
	defer hc.CloseIdleConnections()
	api := telemetry.NewClient(f.url, hc)
	if err := api.AskInvite(ctx, invite.Mailbox(), telemetry.InviteRequest{CSR: csr, Proof: proof}); err != nil {
		return nil, err
	}
	var reply *telemetry.InviteAnswer
	err = poll(ctx, func(ctx context.Context) (done bool, err error) {
		reply, err = api.InviteAnswer(ctx, invite.Mailbox())
		return reply != nil, err
	})
	switch {
	case err != nil:
		return nil, err
	case reply.Refused != "":
		return nil, errors.New(reply.Refused)
	}
	return identity.ParseChain([]byte(reply.Chain))
}

// keepAdmins remembers where a service can be asked.
func keepAdmins(svc local.Service, urls ...string) error {
	text, err := json.Marshal(urls)
	if err != nil {
		return err
	}
	return identity.WriteFile(adminsFile(svc), text)
}

// keptAdmins are the URLs that connect was given; none where it never was.
func keptAdmins(svc local.Service) (urls []string, err error) {
	text, err := os.ReadFile(adminsFile(svc))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &urls)
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", adminsFile(svc), err)
	}
	return urls, nil
}
