package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"skyserve/internal/printable"
	"skyserve/lbd/batch/job"
)

// batchPoll is the interval at which the progress of a batch is read.
const batchPoll = 500 * time.Millisecond

// batchOptions are the flags of `skyserve batch`.
type batchOptions struct {
	service string
	target  string
	apiKey  string
	output  outputFlags // of commands that print one batch
	format  outputFormat
	listing outputFlags // of list

	url      string
	window   string
	metadata map[string]string
	wait     bool
	limit    int
	errors   bool
	file     string
}

func newBatchCmd() *cobra.Command {
	var o batchOptions
	cmd := &cobra.Command{
		Use:   "batch",
		Short: "Submit and manage batches of requests that may wait",
		Long: `Submit a file of requests that use the capacity that interactive requests don't use, and
read the results. The file has one JSON object per line, as for OpenAI's Batch API:

  {"custom_id":"a-1","method":"POST","url":"/v1/chat/completions","body":{"model":"m","messages":[...]}}

docs/batches.md describes batches.

Exit codes: 0 success, 1 failed, 2 usage, 130 interrupted.`,
		Example: `  skyserve batch submit requests.jsonl --wait
  skyserve batch list
  skyserve batch download batch_1a2b -f results.jsonl`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	flags := cmd.PersistentFlags()
	flags.StringVar(&o.service, "service", "", "`NAME` of the service (default: the one in config.yaml, else the only one)")
	flags.StringVar(&o.target, "target", "", "public `URL` of a balancer, as clients use it (default: those of the running service; required with cloud regions)")
	flags.StringVar(&o.apiKey, "api-key", "", "`SOURCE` of the API key or identity token to send, env:NAME or file:PATH")
	cmd.AddCommand(newBatchSubmitCmd(&o), newBatchListCmd(&o), newBatchShowCmd(&o), newBatchCancelCmd(&o), newBatchDownloadCmd(&o))
	return cmd
}

func newBatchSubmitCmd(o *batchOptions) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "submit FILE",
		Short: "Upload a file of requests and create a batch",
		Long: `Upload a file of requests and create a batch. The id of the batch is printed. With --wait,
the command waits for the batch to end, and exits 1 unless it completed.`,
		Example: `  skyserve batch submit requests.jsonl
  skyserve batch submit requests.jsonl --window 4h --metadata run=7 --wait`,
		Args: argsBetween(1, 1, "FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.submit(cmd.Context(), args[0], cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.url, "url", "", "`PATH` of all requests: "+strings.Join(job.Endpoints(), ", ")+" (default: that of the first line)")
	flags.StringVar(&o.window, "window", "24h", "time in which the batch is to be completed, 1m to 720h")
	flags.StringToStringVar(&o.metadata, "metadata", nil, "metadata to store with the batch, as `KEY=VALUE,...`")
	flags.Lookup("metadata").DefValue = "" // pflag shows an empty map as []
	flags.BoolVar(&o.wait, "wait", false, "wait until the batch ends, and show its progress")
	o.outputFlag(cmd)
	return cmd
}

func newBatchListCmd(o *batchOptions) *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Short: "List batches, newest first", Args: noArgs,
		Example: "  skyserve batch list --limit 100",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.list(cmd.Context(), cmd.OutOrStdout())
		},
	}
	cmd.Flags().IntVar(&o.limit, "limit", 20, "maximum number of batches")
	o.listing.registerList(cmd)
	return cmd
}

func newBatchShowCmd(o *batchOptions) *cobra.Command {
	cmd := &cobra.Command{
		Use: "show ID", SuggestFor: []string{"status", "get", "describe"}, Short: "Show a batch", Args: argsBetween(1, 1, "ID"),
		Example: "  skyserve batch show batch_1a2b --wait",
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.show(cmd.Context(), args[0], cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().BoolVar(&o.wait, "wait", false, "wait until the batch ends, and show its progress")
	o.outputFlag(cmd)
	return cmd
}

func newBatchCancelCmd(o *batchOptions) *cobra.Command {
	cmd := &cobra.Command{
		Use: "cancel ID", Short: "Cancel a batch; its results so far are kept", Args: argsBetween(1, 1, "ID"),
		Example: "  skyserve batch cancel batch_1a2b",
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.cancel(cmd.Context(), args[0], cmd.OutOrStdout())
		},
	}
	o.outputFlag(cmd)
	return cmd
}

func newBatchDownloadCmd(o *batchOptions) *cobra.Command {
	cmd := &cobra.Command{
		Use: "download ID", SuggestFor: []string{"results", "result", "output"}, Short: "Write the results of a batch", Args: argsBetween(1, 1, "ID"),
		Example: `  skyserve batch download batch_1a2b > results.jsonl
  skyserve batch download batch_1a2b --errors`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.download(cmd.Context(), args[0], cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&o.errors, "errors", false, "write the failed requests instead of the results")
	flags.StringVarP(&o.file, "file", "f", "", "write to `FILE`, which must not exist (default: standard output)")
	return cmd
}

func (o *batchOptions) outputFlag(cmd *cobra.Command) {
	o.output.registerResult(cmd)
}

// client returns the client of the service.
func (o *batchOptions) client() (*batchClient, error) {
	var err error
	if o.format, err = o.output.parse(); err != nil {
		return nil, err
	}
	key, err := keyFrom(o.apiKey)
	if err != nil {
		return nil, usage(err, "")
	}
	c := &batchClient{key: key}
	if o.target != "" {
		if o.service != "" {
			return nil, usage(errors.New("--target: cannot be combined with --service"), "")
		}
		if u, err := url.Parse(o.target); err != nil || u.Host == "" {
			return nil, usage(fmt.Errorf("--target: must be a URL such as http://127.0.0.1:8001, got %q", o.target), "")
		}
		c.bases = []string{strings.TrimSuffix(o.target, "/")}
		return c, nil
	}
	targets, err := runningTargets(o.service)
	if err != nil {
		return nil, err
	}
	for _, t := range targets {
		c.bases = append(c.bases, t.URL)
	}
	return c, nil
}

// batchError adds the next step to an error of the API.
func batchError(ctx context.Context, doing string, err error) error {
	if ctx.Err() != nil {
		return &exitError{code: exitInterrupted, err: errors.New("interrupted")}
	}
	hint := "check that the service is running: skyserve status"
	var e *apiError
	if errors.As(err, &e) {
		switch hint = ""; e.status {
		case http.StatusUnauthorized:
			hint = "pass the API key or identity token with --api-key env:NAME or file:PATH"
		case http.StatusNotFound:
			return notFound(fmt.Errorf("%s: %w", doing, err), "'skyserve batch list' lists the batches of this API key's tenant")
		}
	}
	return failed(fmt.Errorf("%s: %w", doing, err), hint)
}

func (o *batchOptions) submit(ctx context.Context, file string, out, errOut io.Writer) error {
	c, err := o.client()
	if err != nil {
		return err
	}
	path := o.url
	if path == "" {
		if path, err = firstURL(file); err != nil {
			hint := "docs/batches.md shows an example"
			if errors.As(err, new(*fs.PathError)) {
				hint = ""
			}
			return usage(err, hint)
		}
	}
	params := job.Params{Endpoint: path, CompletionWindow: o.window, Metadata: o.metadata}
	if err := o.checkParams(params, file); err != nil {
		return err
	}
	size, err := requestsSize(file)
	if err != nil {
		return usage(err, "")
	}
	progress := progressLine(errOut)
	f, err := c.upload(ctx, file, transferProgress(progress, "uploading "+file, size))
	progress("")
	if err != nil {
		return batchError(ctx, "uploading "+file, err)
	}
	params.InputFileID = f.ID
	b, err := c.callBatch(ctx, http.MethodPost, "/v1/batches", params)
	if err != nil {
		return batchError(ctx, "creating the batch", err)
	}
	if b.Estimate != nil && b.Estimate.Late {
		printMessage(errOut, labelWarning, "%s is expected to end %s, after its deadline %s: requests without a result by then expire", printable.Line(b.ID), batchTime(*b.Estimate.FinishAt), batchTime(b.ExpiresAt))
	}
	if !o.wait {
		if o.format.isResult() {
			return o.format.writeResult(out, b.ID, b)
		}
		_, err = fmt.Fprintln(out, printable.Line(b.ID))
		return err
	}
	fmt.Fprintf(errOut, "submitted %s\n", printable.Line(b.ID))
	if b, err = c.awaitEnd(ctx, b, errOut); err != nil {
		return batchError(ctx, "waiting for "+b.ID, err)
	}
	return afterAction(o.printBatch(&b, out))
}

// checkParams returns a usage error for a value that the API would reject after the upload. It names the flag.
func (o *batchOptions) checkParams(p job.Params, file string) error {
	p.InputFileID = "not uploaded yet"
	_, err := p.Check()
	var e *job.ParamError
	if !errors.As(err, &e) {
		return err
	}
	source := map[string]string{"endpoint": "--url", "completion_window": "--window", "metadata": "--metadata"}[e.Param]
	if e.Param == "endpoint" && o.url == "" {
		source = file + ":1: url"
	}
	return usage(fmt.Errorf("%s: %s", source, strings.TrimPrefix(e.Message, e.Param+": ")), "")
}

// requestsSize returns the size of a file of requests, or why it cannot be read: the upload would report that as a
// failure of the service. It does not open a pipe, whose writer would end when it is closed again.
func requestsSize(file string) (int64, error) {
	info, err := os.Stat(file)
	switch {
	case err != nil:
		return 0, fmt.Errorf("reading requests: %w", err)
	case info.IsDir():
		return 0, fmt.Errorf("reading requests: %s: is a directory", file)
	case !info.Mode().IsRegular():
		return info.Size(), nil
	}
	in, err := os.Open(file)
	if err != nil {
		return 0, fmt.Errorf("reading requests: %w", err)
	}
	return info.Size(), in.Close()
}

// firstURL returns the url of the first line of a file.
func firstURL(file string) (string, error) {
	in, err := os.Open(file)
	if err != nil {
		return "", fmt.Errorf("reading requests: %w", err)
	}
	defer in.Close()
	line, err := bufio.NewReader(io.LimitReader(in, int64(job.DefaultLimits().LineBytes))).ReadBytes('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("reading %s: %w", file, err)
	}
	var first struct {
		URL string `json:"url"`
	}
	text := strings.TrimSpace(string(line))
	const form = "must be a JSON object with custom_id, method, url and body"
	switch {
	case text == "":
		return "", fmt.Errorf("%s: the first line is empty: %s", file, form)
	case json.Unmarshal(line, &first) != nil:
		return "", fmt.Errorf("%s:1: %s, got %.40q", file, form, text)
	case first.URL == "":
		return "", fmt.Errorf("%s:1: %s: url is missing", file, form)
	}
	return first.URL, nil
}

// awaitEnd waits until a batch has ended, reports its progress, and warns of what it waits for.
func (c *batchClient) awaitEnd(ctx context.Context, b batchAnswer, errOut io.Writer) (batchAnswer, error) {
	progress := progressLine(errOut)
	defer progress("")
	var warned job.Wait
	for !b.Status.Final() {
		if w := b.Wait; w != nil && *w != warned {
			warned = *w
			progress("")
			printMessage(errOut, labelWarning, "%s waits for the %s, until %s: interrupt this command and use 'skyserve batch show %s --wait' later, or ask the operator for a higher limit", printable.Line(b.ID), printable.Line(w.For), batchTime(w.Until), printable.Line(b.ID))
		}
		progress(batchProgress(&b.Batch, time.Until(time.Unix(b.ExpiresAt, 0))))
		select {
		case <-ctx.Done():
			return b, ctx.Err()
		case <-time.After(batchPoll):
		}
		next, err := c.batch(ctx, b.ID)
		if err != nil {
			return b, err
		}
		b = next
	}
	return b, nil
}

// countsText describes the progress of a batch.
func countsText(c job.Counts) string {
	text := fmt.Sprintf("%d of %d done", c.Completed+c.Failed, c.Total)
	if c.Failed > 0 {
		text += fmt.Sprintf(", %d failed", c.Failed)
	}
	return text
}

func (o *batchOptions) list(ctx context.Context, out io.Writer) error {
	if o.limit < 1 {
		return usage(fmt.Errorf("--limit: must be at least 1, got %d", o.limit), "")
	}
	format, err := o.listing.parse()
	if err != nil {
		return err
	}
	c, err := o.client()
	if err != nil {
		return err
	}
	batches, err := c.batches(ctx, o.limit)
	if err != nil {
		return batchError(ctx, "listing batches", err)
	}
	return format.write(out, append([]job.Batch{}, batches...), batchTable(batches))
}

// batchTable returns the table of batches.
func batchTable(batches []job.Batch) list {
	t := list{titles: []string{"ID", "STATUS", "DONE", "FAILED", "TOTAL"}, wide: []string{"CREATED", "EXPIRES", "ENDPOINT", "MODEL", "INPUT TOKENS", "OUTPUT TOKENS"}}
	for i := range batches {
		b := &batches[i]
		row := listRow{b.ID, []string{
			b.ID, string(b.Status), strconv.Itoa(b.RequestCounts.Completed), strconv.Itoa(b.RequestCounts.Failed), strconv.Itoa(b.RequestCounts.Total),
		}, []string{batchTime(b.CreatedAt), batchTime(b.ExpiresAt), b.Endpoint, b.Model, "", ""}}
		if u := b.Usage; u != nil {
			row.wide[4], row.wide[5] = strconv.FormatInt(u.InputTokens, 10), strconv.FormatInt(u.OutputTokens, 10)
		}
		t.rows = append(t.rows, row)
	}
	return t
}

func batchTime(unix int64) string { return time.Unix(unix, 0).Format("2006-01-02 15:04:05") }

func (o *batchOptions) show(ctx context.Context, id string, out, errOut io.Writer) error {
	c, err := o.client()
	if err != nil {
		return err
	}
	b, err := c.batch(ctx, id)
	if err == nil && o.wait {
		b, err = c.awaitEnd(ctx, b, errOut)
	}
	if err != nil {
		return batchError(ctx, "reading "+id, err)
	}
	return o.printBatch(&b, out)
}

// printBatch prints a batch. If the command waited for its end, another end than completed is an error.
func (o *batchOptions) printBatch(b *batchAnswer, out io.Writer) error {
	if o.format.isResult() {
		if err := o.format.writeNamed(out, b.ID, b); err != nil {
			return err
		}
		return o.endError(b)
	}
	t := printable.NewTable(out)
	t.Row("id", b.ID)
	t.Row("status", string(b.Status))
	t.Row("requests", countsText(b.RequestCounts))
	if b.Model != "" {
		t.Row("model", b.Model)
	}
	t.Row("endpoint", b.Endpoint)
	if u := b.Usage; u != nil {
		t.Row("tokens", fmt.Sprintf("%d input, %d output", u.InputTokens, u.OutputTokens))
	}
	if b.Estimate != nil && b.Estimate.text() != "" {
		t.Row("estimate", b.Estimate.text())
	}
	if b.Wait != nil {
		t.Row("waits for", b.Wait.For+", until "+batchTime(b.Wait.Until))
	}
	t.Row("created", batchTime(b.CreatedAt))
	t.Row("expires", batchTime(b.ExpiresAt))
	if b.OutputFileID != nil {
		t.Row("results", *b.OutputFileID)
	}
	if b.ErrorFileID != nil {
		t.Row("errors", *b.ErrorFileID)
	}
	if b.Errors != nil {
		for _, p := range b.Errors.Data {
			place := "input"
			if p.Line != nil {
				place = "line " + strconv.Itoa(*p.Line)
			}
			t.Row(place, p.Message)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	return o.endError(b)
}

func (o *batchOptions) endError(b *batchAnswer) error {
	if !o.wait || b.Status == job.Completed {
		return nil
	}
	return failed(fmt.Errorf("the batch %s ended with the status %s", b.ID, b.Status), failureHint(b))
}

// failureHint returns the command that shows why requests of a batch failed, or the batch; empty if nothing has failed.
// A batch whose input cannot be read has no file of errors.
func failureHint(b *batchAnswer) string {
	switch {
	case b.ErrorFileID != nil:
		return "'skyserve batch download " + b.ID + " --errors' writes the requests that failed"
	case b.Status == job.Failed:
		return "'skyserve batch show " + b.ID + "' shows why it failed"
	}
	return ""
}

func (o *batchOptions) cancel(ctx context.Context, id string, out io.Writer) error {
	c, err := o.client()
	if err != nil {
		return err
	}
	b, err := c.callBatch(ctx, http.MethodPost, "/v1/batches/"+url.PathEscape(id)+"/cancel", struct{}{})
	if err != nil {
		return batchError(ctx, "cancelling "+id, err)
	}
	return afterAction(o.printBatch(&b, out))
}

func (o *batchOptions) download(ctx context.Context, id string, out, errOut io.Writer) (err error) {
	c, err := o.client()
	if err != nil {
		return err
	}
	b, err := c.batch(ctx, id)
	if err != nil {
		return batchError(ctx, "reading "+id, err)
	}
	file, what := b.OutputFileID, "results"
	if o.errors {
		file, what = b.ErrorFileID, "failed requests"
	}
	if file == nil {
		hint := failureHint(&b)
		if !b.Status.Final() {
			hint = "wait for its end: skyserve batch show " + b.ID + " --wait"
		}
		return failed(fmt.Errorf("the batch %s has the status %s and no %s", b.ID, b.Status, what), hint)
	}
	if o.file != "" {
		f, err := os.OpenFile(o.file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return usage(fmt.Errorf("--file: %w", err), "")
		}
		defer func() {
			if e := f.Close(); err == nil {
				err = e
			}
			if err != nil {
				_ = os.Remove(o.file) // it is incomplete
			}
		}()
		out = f
	}
	progress := progressLine(errOut)
	if o.file == "" && isTerminal(out) { // the results are on the screen
		progress = func(string) {}
	}
	err = c.content(ctx, *file, out, func(total int64) func(int64) {
		return transferProgress(progress, "downloading "+*file, total)
	})
	progress("")
	if err != nil {
		return batchError(ctx, "downloading the "+what+" of "+b.ID, err)
	}
	return nil
}
