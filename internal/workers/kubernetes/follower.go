package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// State says how far discovery knows what a source has.
type State string

// The states of a source.
const (
	Syncing      State = "syncing" // not listed yet
	Synced       State = "synced"
	Missing      State = "missing" // the resource, its namespace or the pool does not exist
	Invalid      State = "invalid" // the pool has no selector or no port
	Forbidden    State = "forbidden"
	Unauthorized State = "unauthorized"
	Unreachable  State = "unreachable"
)

const (
	// backoffFirst and backoffMost bound the wait after failures in a row, which doubles and is
	// spread by half. A refused connection costs the server nothing, so it is tried more often.
	backoffFirst   = 250 * time.Millisecond
	backoffMost    = 30 * time.Second
	backoffRefused = 3 * time.Second
	// backoffMissing is the wait while the resource does not exist.
	backoffMissing = 30 * time.Second
	// failuresToList is how many watches in a row fail until the objects are listed again. Refused
	// connections do not count.
	failuresToList = 5
	// A watch is asked to live for minWatchSeconds to twice as long.
	minWatchSeconds = 300
	// silentAfter is how long a watch may be silent: servers send bookmarks about once a minute.
	silentAfter = 150 * time.Second
	// livedLong is how long a watch without messages lives whose end is no failure: servers end
	// watches as they like, and who cannot serve them ends them at once.
	livedLong = 100 * time.Millisecond
	// watchEvery is the least time between the begins of two watches.
	watchEvery = 500 * time.Millisecond
	// listEvery is the least time between the begins of two LISTs. It doubles with each LIST that the
	// server answers, up to backoffMost, until a watch has lived for livedWell.
	listEvery = time.Second
	livedWell = 30 * time.Second
	// answerTime bounds the time for a page of a LIST, and for the begin of a watch, with all of its
	// answer if the server refuses it.
	answerTime = 30 * time.Second
	// maxGone bounds the deleted objects of which late events are known as such.
	maxGone = 4096
)

// sink takes what a follower learns. Its calls come one after the other.
type sink[T any] interface {
	// replace has all objects; those whose object is too large are named in keep.
	replace(all []T, keep map[string]bool)
	set(T)
	remove(T)
}

// follower lists and watches one kind of object and tells a sink. It is what client-go's reflector
// needs of a resource, and adds what the reflector does not say: states, a wait by the kind of
// failure, and bounds.
type follower[T any] struct {
	client    rest.Interface
	resource  string // pods
	group     string // "" of pods
	namespace string
	labels    string // the selector
	fields    string
	list      func() runtime.Object // an empty list to decode into
	convert   func(runtime.Object) (page *objects[T], one *object[T])
	sink      sink[T]
	counts    *Counters
	changed   func()       // the state has changed
	page      atomic.Int64 // objects of a page: pageSize, fewer where one could not be read

	// versions has the newest version of each object by namespace/name, and gone counts those
	// that were deleted. Only the reflector uses them, from one goroutine.
	versions map[string]objectVersion
	gone     int

	mu       sync.Mutex // guards the fields below
	state    State
	since    time.Time
	problem  string        // the last failure, "" after a success
	failures int           // in a row
	kind     failure       // of the last of them
	due      time.Time     // when the next request may be made
	watchDue time.Time     // when the next watch may begin
	listDue  time.Time     // when the next LIST may begin
	listGap  time.Duration // from the LIST before it; 0: none has been answered since a watch lived well
	message  time.Time     // of the last message
	listed   bool
	cause    string // of the next LIST
}

// failure is a kind of failure.
type failure uint8

const (
	noFailure failure = iota
	refused           // connection
	broken            // other failures of connections and servers
	throttled
	forbidden
	unauthorized
	missing
	expired
	unreadable
)

// failureOf returns the kind of an error of client-go.
func failureOf(err error) failure {
	switch {
	case err == nil:
		return noFailure
	case apierrors.IsResourceExpired(err) || apierrors.IsGone(err):
		return expired
	case apierrors.IsForbidden(err):
		return forbidden
	case apierrors.IsUnauthorized(err):
		return unauthorized
	case apierrors.IsTooManyRequests(err):
		return throttled
	case apierrors.IsNotFound(err):
		return missing
	case errors.Is(err, syscall.ECONNREFUSED):
		return refused
	case errors.Is(err, errTooLarge) || errors.Is(err, errMemory) || errors.Is(err, errUnreadable) || apierrors.HasStatusCause(err, watchDecoding):
		return unreadable
	}
	return broken
}

// errUnreadable is the error of an answer that is no list of the objects that were asked for.
var errUnreadable = errors.New("the answer cannot be read")

// watchDecoding is the cause of the status by which client-go ends a watch that it cannot read on: an
// event is no object, or its bytes could not be read (rest.Request.Watch).
const watchDecoding metav1.CauseType = "ClientWatchDecoding"

// start sets the state at the begin.
func (f *follower[T]) start(now time.Time) *follower[T] {
	f.state, f.since, f.cause = Syncing, now, "start"
	f.page.Store(pageSize)
	f.versions = make(map[string]objectVersion)
	return f
}

// String is the kind as a label of metrics.
func (f failure) String() string {
	return [...]string{"none", "refused", "broken", "throttled", "forbidden", "unauthorized", "missing", "expired", "unreadable"}[f]
}

// run lists and watches until ctx ends.
func (f *follower[T]) run(ctx context.Context) {
	r := cache.NewReflectorWithOptions(f, nil, (*store[T])(f), cache.ReflectorOptions{
		Name: f.resource, TypeDescription: f.resource,
		// The waits are in pause, which knows the failures.
		Backoff: &wait.Backoff{Duration: time.Millisecond, Factor: 1, Steps: 1},
	})
	r.WatchListPageSize = pageSize
	r.RunWithContext(klog.NewContext(ctx, klog.Logger{})) // what it would log is in the states
}

// IsWatchListSemanticsUnSupported makes the reflector LIST: streamed lists need a server of 1.34
// or newer.
func (f *follower[T]) IsWatchListSemanticsUnSupported() bool { return true }

// List implements cache.ListerWatcher.
func (f *follower[T]) List(o metav1.ListOptions) (runtime.Object, error) {
	return f.ListWithContext(context.Background(), o)
}

// Watch implements cache.ListerWatcher.
func (f *follower[T]) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return f.WatchWithContext(context.Background(), o)
}

func (f *follower[T]) request() *rest.Request {
	r := f.client.Get().Namespace(f.namespace).Resource(f.resource).MaxRetries(0)
	if f.labels != "" {
		r = r.Param("labelSelector", f.labels)
	}
	if f.fields != "" {
		r = r.Param("fieldSelector", f.fields)
	}
	return r
}

// ListWithContext implements cache.ListerWithContext: a page of the newest state.
func (f *follower[T]) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	if o.Continue == "" {
		if err := f.pause(ctx, true); err != nil {
			return nil, err
		}
		f.counts.list(f.resource, f.takeCause())
	}
	begun := time.Now()
	r := f.request()
	if o.Limit > 0 {
		r = r.Param("limit", fmt.Sprint(min(o.Limit, f.page.Load())))
	}
	if o.Continue != "" {
		r = r.Param("continue", o.Continue)
	}
	page := f.list()
	answer, cancel := context.WithTimeoutCause(ctx, answerTime, errSlow)
	defer cancel()
	result := r.Do(answer)
	err := slow(answer, result.Error())
	if err == nil {
		if wrong := result.Into(page); wrong != nil {
			err = fmt.Errorf("%w: %w", errUnreadable, wrong)
		}
	}
	f.counts.request(f.resource, "list", err)
	if err != nil {
		kind := failureOf(err)
		if kind == unreadable || errors.Is(err, errSlow) {
			f.page.Store(max(f.page.Load()/4, 1))
		}
		f.failed(err, kind)
		return nil, fmt.Errorf("list %s: %w", f.resource, err)
	}
	f.heard()
	if o.Continue == "" {
		f.spaceLists(begun)
	}
	kept, _ := f.convert(page)
	return kept, nil
}

// WatchWithContext implements cache.WatcherWithContext. The watch that it returns goes on over those
// that the server ends, until the objects have to be listed.
func (f *follower[T]) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	from, err := f.watch(ctx, o.ResourceVersion)
	if err != nil {
		return nil, err
	}
	return f.newStream(ctx, from, o.ResourceVersion), nil
}

// errList makes the reflector list the objects.
var errList = apierrors.NewResourceExpired("the objects have to be listed")

// watch begins a watch after a resource version. After a failure it tries again by itself, until
// the objects have to be listed: then it returns errList.
func (f *follower[T]) watch(ctx context.Context, version string) (*begunWatch, error) {
	for {
		if err := f.pause(ctx, false); err != nil {
			return nil, err
		}
		seconds := minWatchSeconds + rand.IntN(minWatchSeconds+1)
		r := f.request().Param("watch", "1").Param("allowWatchBookmarks", "true").Param("resourceVersion", version).
			Param("timeoutSeconds", strconv.Itoa(seconds))
		watching, cancel := context.WithCancelCause(ctx)
		late := time.AfterFunc(answerTime, func() { cancel(errSlow) })
		asked := time.Now()
		w, err := r.Watch(watching)
		late.Stop()
		err = slow(watching, err)
		f.counts.request(f.resource, "watch", err)
		if err == nil {
			f.become(Synced, "")
			return &begunWatch{w, asked, time.Now(), func() { cancel(nil) }}, nil
		}
		cancel(nil)
		if f.failed(err, failureOf(err)) {
			return nil, cmp.Or(ctx.Err(), error(errList))
		}
	}
}

// errSlow is an answer that takes longer than answerTime.
var errSlow = fmt.Errorf("the API server has not finished its answer within %v", answerTime)

// slow returns errSlow for the error of a request that was ended by it, else the error.
func slow(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), errSlow) {
		return errSlow
	}
	return err
}

// begunWatch is a watch of the server with when it was asked for and when it began. The caller must
// call end.
type begunWatch struct {
	watch.Interface
	asked, at time.Time
	end       context.CancelFunc
}

// spaceLists sets when the next LIST may begin after one that has begun and was answered.
func (f *follower[T]) spaceLists(begun time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.listGap = min(max(listEvery, 2*f.listGap), backoffMost)
	f.listDue = begun.Add(f.listGap)
}

// pause waits until the next request, a LIST or a watch, may be made.
func (f *follower[T]) pause(ctx context.Context, list bool) error {
	f.mu.Lock()
	spaced := f.watchDue
	if list {
		spaced = f.listDue
	}
	wait := max(time.Until(f.due), time.Until(spaced))
	f.mu.Unlock()
	if wait <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// failed records a failure, and reports whether the objects have to be listed.
func (f *follower[T]) failed(err error, kind failure) (list bool) {
	if errors.Is(err, context.Canceled) {
		return true
	}
	f.mu.Lock()
	if kind != f.kind && (kind == refused || f.kind == refused) {
		f.failures = 0 // the server answers again, or is away
	}
	f.kind = kind
	f.failures++
	f.problem = err.Error()
	wait := backoffFirst << min(f.failures-1, 10)
	most := backoffMost
	switch kind {
	case refused:
		most = backoffRefused
	case missing:
		wait = backoffMissing
	case expired:
		most = 0 // a LIST brings a version that is kept, and LISTs are spaced
	}
	wait = min(wait, most)
	wait = wait/2 + time.Duration(rand.Int64N(int64(wait)+1)) // ± 50 %
	if kind == missing {
		wait = min(wait, backoffMissing)
	}
	if after, told := apierrors.SuggestsClientDelay(err); told {
		wait = max(wait, time.Duration(after)*time.Second)
	}
	f.due = time.Now().Add(wait)
	list = kind == expired || kind == unreadable || kind != refused && f.failures >= failuresToList
	if list {
		f.cause = kind.String()
	}
	state, known := f.state, f.listed
	f.mu.Unlock()
	switch kind {
	case forbidden:
		state = Forbidden
	case unauthorized:
		state = Unauthorized
	case missing:
		state = Missing
	case refused, broken, throttled, unreadable:
		if !known {
			state = Unreachable
		}
	}
	f.become(state, f.explain(err, kind))
	return list
}

// explain returns a failure in the words of an operator: what to do comes first, as the log cuts long
// texts.
func (f *follower[T]) explain(err error, kind failure) string {
	rule := fmt.Sprintf(`{apiGroups: [%q], resources: [%s], verbs: [get, list, watch]}`, f.group, f.resource)
	switch kind {
	case forbidden:
		return fmt.Sprintf("the Role of the ServiceAccount lacks the rule %s in the namespace %s: %v", rule, f.namespace, err)
	case missing:
		return fmt.Sprintf("the API server does not know %s, or the namespace %s does not exist: %v", strings.Trim(f.resource+"."+f.group, "."), f.namespace, err)
	}
	return err.Error()
}

// heard notes a message of the server.
func (f *follower[T]) heard() {
	f.mu.Lock()
	f.message, f.failures, f.kind, f.due = time.Now(), 0, noFailure, time.Time{}
	f.mu.Unlock()
}

// ended records the end of a watch.
func (f *follower[T]) ended(w *begunWatch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(w.at) >= livedWell {
		f.listGap, f.listDue = 0, time.Time{}
	}
	f.watchDue = w.asked.Add(watchEvery)
}

// become sets the state and the problem.
func (f *follower[T]) become(s State, problem string) {
	f.mu.Lock()
	if s == Synced && !f.listed {
		s = f.state
	}
	same := s == f.state && problem == f.problem
	if s != f.state {
		f.state, f.since = s, time.Now()
	}
	f.problem = problem
	f.mu.Unlock()
	if !same || problem != "" {
		f.changed()
	}
}

func (f *follower[T]) takeCause() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	cause := f.cause
	f.cause = "ended" // unless a failure says otherwise
	return cause
}

// status is what a follower shows.
type status struct {
	State   State
	Since   time.Time
	Problem string
	Message time.Time // zero: none yet
	Listed  bool
}

func (f *follower[T]) status() status {
	f.mu.Lock()
	defer f.mu.Unlock()
	return status{f.state, f.since, f.problem, f.message, f.listed}
}

// objectVersion is a resource version, and whether the object was deleted with it.
type objectVersion struct {
	number uint64
	gone   bool
}

// versionOf returns the resource version of an object, 0 if it is no number.
func versionOf(o metav1.Object) uint64 {
	n, _ := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	return n
}

// late reports whether an event of an object is older than what is known of the object, and notes
// its version otherwise. An event without a version is never late.
func (f *follower[T]) late(o metav1.Object, gone bool) bool {
	key, next := o.GetNamespace()+"/"+o.GetName(), objectVersion{versionOf(o), gone}
	known, is := f.versions[key]
	switch {
	case next.number == 0 || !is && len(f.versions) >= maxTracked:
		return false
	case next.number < known.number || next.number == known.number && known.gone:
		return true
	}
	if gone {
		if f.gone++; f.gone > maxGone {
			maps.DeleteFunc(f.versions, func(_ string, v objectVersion) bool { return v.gone })
			f.gone = 1
		}
	}
	f.versions[key] = next
	return false
}

// store passes what the reflector finds to the sink. It implements cache.ReflectorStore.
type store[T any] follower[T]

func (s *store[T]) follower() *follower[T] { return (*follower[T])(s) }

// Add implements cache.ReflectorStore.
func (s *store[T]) Add(o any) error { return s.Update(o) }

// Update implements cache.ReflectorStore.
func (s *store[T]) Update(o any) error {
	if one, ok := o.(*object[T]); ok && !one.tooLarge && !s.follower().late(one, false) {
		s.sink.set(one.value)
	}
	return nil
}

// Delete implements cache.ReflectorStore.
func (s *store[T]) Delete(o any) error {
	if one, ok := o.(*object[T]); ok && !one.tooLarge && !s.follower().late(one, true) {
		s.sink.remove(one.value)
	}
	return nil
}

// Replace implements cache.ReflectorStore.
func (s *store[T]) Replace(all []any, _ string) error {
	f := s.follower()
	kept := make([]T, 0, len(all))
	var keep map[string]bool
	f.versions, f.gone = make(map[string]objectVersion, len(all)), 0
	for _, o := range all {
		one, ok := o.(*object[T])
		switch {
		case !ok:
		case one.tooLarge:
			f.counts.unread(f.resource)
			if keep == nil {
				keep = make(map[string]bool)
			}
			keep[one.Namespace+"/"+one.Name] = true
		default:
			f.late(one, false)
			kept = append(kept, one.value)
		}
	}
	f.sink.replace(kept, keep)
	f.page.Store(min(2*f.page.Load(), pageSize))
	f.mu.Lock()
	f.listed = true
	f.mu.Unlock()
	f.become(Synced, "")
	return nil
}

// Resync implements cache.ReflectorStore; nothing is to be done.
func (s *store[T]) Resync() error { return nil }

// stream is a watch whose objects are converted, and whose errors are recorded. It goes on with
// another watch of the server where one has ended.
type stream[T any] struct {
	f       *follower[T]
	version string // of the newest event; watches begin after it
	out     chan watch.Event
	ended   context.CancelFunc
}

func (f *follower[T]) newStream(ctx context.Context, from *begunWatch, version string) *stream[T] {
	ctx, cancel := context.WithCancel(ctx) //nolint:gosec // Stop calls it
	s := &stream[T]{f: f, version: version, out: make(chan watch.Event), ended: cancel}
	go s.pass(ctx, from)
	return s
}

// ResultChan implements watch.Interface.
func (s *stream[T]) ResultChan() <-chan watch.Event { return s.out }

// Stop implements watch.Interface.
func (s *stream[T]) Stop() { s.ended() }

// pass passes events on until Stop, or until the objects have to be listed.
func (s *stream[T]) pass(ctx context.Context, from *begunWatch) {
	defer close(s.out)
	for {
		list := s.passOne(ctx, from)
		if !list {
			var err error
			from, err = s.f.watch(ctx, s.version)
			list = err != nil
		}
		if list {
			s.send(ctx, watch.Event{Type: watch.Error, Object: &errList.ErrStatus})
			return
		}
	}
}

// newest returns the version as a number.
func (s *stream[T]) newest() uint64 {
	n, _ := strconv.ParseUint(s.version, 10, 64)
	return n
}

// send hands an event to the reflector, unless ctx has ended.
func (s *stream[T]) send(ctx context.Context, e watch.Event) (sent bool) {
	select {
	case <-ctx.Done():
		return false
	case s.out <- e:
		return true
	}
}

// passOne passes the events of one watch on until it ends, and reports whether the objects have to
// be listed.
func (s *stream[T]) passOne(ctx context.Context, from *begunWatch) (list bool) {
	defer from.end()
	defer from.Stop()
	defer s.f.ended(from)
	quiet := time.NewTimer(silentAfter)
	defer quiet.Stop()
	lived := false
	for {
		var e watch.Event
		var open bool
		select {
		case <-ctx.Done():
			return false
		case <-quiet.C:
			return s.f.silent()
		case e, open = <-from.ResultChan():
		}
		switch {
		case !open:
			if lived || time.Since(from.at) >= livedLong {
				s.f.heard() // an end is no failure
			}
			return s.f.failed(errEnded, broken)
		case e.Type == watch.Error:
			err := apierrors.FromObject(e.Object)
			kind := failureOf(err)
			s.f.counts.event(s.f.resource, "error")
			if kind == unreadable {
				s.f.counts.unread(s.f.resource)
			}
			return s.f.failed(err, kind)
		}
		lived = true
		s.f.heard()
		quiet.Reset(silentAfter)
		s.f.counts.event(s.f.resource, strings.ToLower(string(e.Type)))
		if o, ok := e.Object.(metav1.Object); ok && versionOf(o) >= s.newest() {
			s.version = o.GetResourceVersion()
		}
		if _, one := s.f.convert(e.Object); one != nil {
			if one.tooLarge {
				s.f.counts.unread(s.f.resource)
			}
			e.Object = one
			if !s.send(ctx, e) {
				return false
			}
		}
	}
}

// errEnded is the end of a watch.
var errEnded = errors.New("the watch has ended")

// silent records that a watch has been silent for too long, and reports whether the objects have to
// be listed.
func (f *follower[T]) silent() (list bool) {
	list = f.failed(fmt.Errorf("no message for %v", silentAfter), broken)
	f.become(Unreachable, fmt.Sprintf("no message for %v", silentAfter))
	return list
}

// check makes a source without messages unreachable.
func (f *follower[T]) check(now time.Time) {
	st := f.status()
	if st.State == Synced && !st.Message.IsZero() && now.Sub(st.Message) > silentAfter {
		f.become(Unreachable, cmp.Or(st.Problem, fmt.Sprintf("no message for %v", silentAfter)))
	}
}
