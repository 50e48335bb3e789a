/* The scheduler over an executor that computes nothing but remembers what each KV slot would hold:
 * an answer is a function of the tokens that its row really sees, so any wrong page, lost or
 * repeated token changes it. */
#include "unit/scheduler_setup.h"

#include <math.h>

enum {
    N_PAGES = 256,
    MAX_SCORED = 10,  /* after a step of 11 a prompt may end with a page */
    SCORED_EVERY = 7, /* requests */
    PENALTY_EVERY = 23,
    MIN_TOKENS_EVERY = 3,
    MIN_TOKENS = 40
};

/* --- the executor ----------------------------------------------------------------------------- */

struct fake {
    uint64_t held[N_PAGES * PAGE]; /* what a slot holds: the hash of its token and all before it */
    int n_steps;
    int broken_step; /* the step whose first row has no number among its logits; 0: none */
    bool fails;
};

/* The token behind the row with this hash: the draw's position and penalties count too. */
static int32_t next_token(uint64_t hash, const struct drawing *draw)
{
    if (draw->is_given)
        return draw->given;
    int32_t token = (int32_t)(mix(hash, (int32_t)draw->position + 1000 * draw->n_seen) % VOCAB);
    token = token < EOS ? EOS : token;
    return token == EOS && draw->bans_end ? EOS + 1 : token;
}

/* That of the token behind the row with this hash. */
static float score_of(uint64_t hash, int32_t token)
{
    return -(float)(mix(hash, token) % 4096);
}

static enum status fake_run(void *context, const struct batch *b, const struct drawing *draws,
                            struct sample *out, struct error *error)
{
    struct fake *fake = context;
    int32_t wanted = 0;
    fake->n_steps++;
    if (fake->fails)
        return error_set(error, ERROR_IO, "the device is gone");
    assert_true(b->n_tokens > 0);
    for (int32_t i = 0; i < b->n_sequences; i++) {
        const int32_t *pages = b->page_table[0] + (size_t)i * (size_t)b->max_pages;
        for (int32_t t = b->q_start[i]; t < b->q_start[i + 1]; t++) {
            int32_t position = b->positions[t], before = position - 1;
            uint64_t hash = 1;
            if (position > 0)
                hash = fake->held[pages[before / PAGE] * PAGE + before % PAGE];
            assert_int_equal(b->slots[0][t], pages[position / PAGE] * PAGE + position % PAGE);
            fake->held[b->slots[0][t]] = mix(hash, b->tokens[t]);
            if (wanted == b->n_want || b->want[wanted] != t)
                continue;
            hash = fake->held[b->slots[0][t]];
            bool is_broken = fake->n_steps == fake->broken_step && wanted == 0;
            int32_t token = is_broken ? -1 : next_token(hash, &draws[wanted]);
            out[wanted++] = (struct sample){.token = token, .logprob = score_of(hash, token)};
        }
        assert_int_equal(b->positions[b->q_start[i + 1] - 1] + 1, b->kv_len[i]);
    }
    assert_int_equal(wanted, b->n_want);
    return OK;
}

/* --- requests and what should come of them ---------------------------------------------------- */

struct live {
    uint64_t uid;
    int32_t prompt[CONTEXT], answer[CONTEXT];
    int32_t n_prompt, n_answer, n_seen, max_tokens, min_tokens;
    bool is_scored, has_penalty;
    int32_t n_told; /* of the prompt */
    enum finish_reason finish, expected_finish;
};

struct world {
    struct fake fake;
    struct stub stub;
    struct kv_cache cache;
    struct scheduler *scheduler;
    struct live live[MAX_LIVE];
    int n_finished, n_events, n_scored;
};

static struct live *find_live(struct world *w, uint64_t uid)
{
    for (int i = 0; i < MAX_LIVE; i++)
        if (w->live[i].uid == uid)
            return &w->live[i];
    return NULL;
}

/* The answer by definition: each token from all before it, until EOS or the limit. */
static void expect_answer(struct live *l)
{
    uint64_t hash = 1;
    bool is_seen[VOCAB] = {false};
    struct drawing draw = {.n_seen = 0};
    for (int32_t i = 0; i < l->n_prompt; i++) {
        hash = mix(hash, l->prompt[i]);
        draw.n_seen += l->has_penalty && !is_seen[l->prompt[i]];
        is_seen[l->prompt[i]] = true;
    }
    for (l->n_answer = 0; l->n_answer < l->max_tokens;) {
        draw.bans_end = l->n_answer < l->min_tokens;
        draw.position = l->n_answer;
        int32_t token = next_token(hash, &draw);
        draw.n_seen += l->has_penalty && !is_seen[token];
        is_seen[token] = true;
        l->answer[l->n_answer++] = token;
        if (token == EOS) {
            l->expected_finish = FINISH_STOP;
            return;
        }
        hash = mix(hash, token);
    }
    l->expected_finish = FINISH_LENGTH;
}

/* Each token of the prompt once and in order, with what the tokens before it say. */
static void check_score(struct live *l, const struct sample *sample)
{
    uint64_t hash = 1;
    assert_true(l->is_scored && l->n_told < l->n_prompt && l->n_seen == 0);
    for (int32_t i = 0; i < l->n_told; i++)
        hash = mix(hash, l->prompt[i]);
    assert_int_equal(sample->token, l->prompt[l->n_told]);
    if (l->n_told == 0)
        assert_true(isnan(sample->logprob));
    else
        assert_true(sample->logprob == score_of(hash, sample->token));
    l->n_told++;
}

static void on_event(void *context, const struct token_event *event)
{
    struct world *w = context;
    struct live *l = find_live(w, event->uid);
    assert_non_null(l);
    assert_int_equal(l->finish, FINISH_NONE);
    w->n_events++;
    if (event->is_prompt) {
        check_score(l, event->sample);
        return;
    }
    if (event->sample) {
        assert_true(l->n_seen < l->n_answer);
        assert_int_equal(l->n_told, l->is_scored ? l->n_prompt : 0);
        assert_int_equal(event->sample->token, l->answer[l->n_seen]);
        l->n_seen++;
    }
    l->finish = event->finish;
    if (event->finish == FINISH_NONE)
        return;
    if (event->finish == FINISH_STOP || event->finish == FINISH_LENGTH) {
        assert_int_equal(event->finish, l->expected_finish);
        assert_int_equal(l->n_seen, l->n_answer);
        assert_int_equal(event->n_output, l->n_answer);
        assert_int_equal(event->n_prompt, l->n_prompt);
    }
    w->n_finished++;
    w->n_scored += l->is_scored && l->n_told == l->n_prompt;
    l->uid = 0;
}

static struct world *new_world(bool has_queue, enum scheduler_policy policy,
                               enum kv_cache_type type, int32_t max_prefill)
{
    struct world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->stub = (struct stub){
        .run = fake_run, .context = &w->fake, .cache = &w->cache, .has_queue = has_queue};
    w->scheduler = open_scheduler(
        &w->cache, (struct kv_cache_spec){.type = type, .n_groups = 1, .n_pages = {N_PAGES}},
        (struct scheduler_options){
            .policy = policy, .max_prefill_length = max_prefill, .max_scored = MAX_SCORED},
        stub_executor(&w->stub), on_event, w);
    return w;
}

static void end_world(struct world *w)
{
    scheduler_free(w->scheduler);
    stub_done(&w->stub);
    kv_cache_done(&w->cache);
    free(w);
}

/* Prompts share prefixes: a common head of several lengths, then tokens of their own. */
static struct live *submit(struct world *w, uint64_t uid, int32_t n_shared, int32_t n_own,
                           int32_t max_tokens)
{
    struct live *l = find_live(w, 0);
    if (!l)
        return NULL;
    *l = (struct live){.uid = uid,
                       .n_prompt = n_shared + n_own,
                       .max_tokens = max_tokens,
                       .min_tokens = uid % MIN_TOKENS_EVERY == 0 ? MIN_TOKENS : 0,
                       .has_penalty = uid % PENALTY_EVERY == 0,
                       .is_scored = uid % SCORED_EVERY == 0};
    for (int32_t i = 0; i < l->n_prompt; i++)
        l->prompt[i] = i < n_shared ? 100 + i % 50 : 10 + rand() % 900;
    if (l->max_tokens > CONTEXT - l->n_prompt)
        l->max_tokens = CONTEXT - l->n_prompt;
    expect_answer(l);
    struct request_options o = {.uid = uid,
                                .ids = l->prompt,
                                .n_ids = l->n_prompt,
                                .params = sampling_params_default(),
                                .scores_prompt = l->is_scored,
                                .min_tokens = l->min_tokens,
                                .max_tokens = max_tokens};
    o.params.presence_penalty = l->has_penalty ? 1.0f : 0.0f;
    assert_int_equal(scheduler_submit(w->scheduler, &o, NULL), OK);
    return l;
}

/* --- tests ------------------------------------------------------------------------------------ */

static void any_order_of_events_gives_every_request_its_answer(void **state)
{
    (void)state;
    enum { STEPS = 100000 };
    for (int variant = 0; variant < 8; variant++) {
        struct world *w =
            new_world(variant & 4, variant & 1 ? POLICY_MIXED : POLICY_PREFILL_FIRST,
                      variant & 2 ? KV_CACHE_NAIVE : KV_CACHE_RADIX, variant & 1 ? 24 : 64);
        uint64_t uid = 0;
        srand(17 + (unsigned)variant);
        for (int step = 0; step < STEPS / 4; step++) {
            if (rand() % 3 == 0)
                submit(w, ++uid, rand() % 3 ? (rand() % 5) * 20 : 0, 1 + rand() % 60,
                       1 + rand() % 300);
            if (rand() % 20 == 0 && uid > 0)
                scheduler_cancel(w->scheduler, 1 + (uint64_t)rand() % uid);
            if (rand() % 500 == 0)
                kv_cache_flush(&w->cache);
            assert_int_equal(scheduler_step(w->scheduler, NULL), OK);
            if (!scheduler_check(w->scheduler))
                fail_msg("unsound after step %d of variant %d", step, variant);
        }
        run_scheduler(w->scheduler);
        struct scheduler_figures f = scheduler_figures(w->scheduler);
        printf("variant %d: %d requests, %d scored, %llu steps, %d ahead, %llu preemptions, %llu "
               "cached tokens\n",
               variant, w->n_finished, w->n_scored, (unsigned long long)f.steps, w->stub.n_ahead,
               (unsigned long long)f.preemptions, (unsigned long long)f.cached_tokens);

        assert_true(f.preemptions > 10 && w->n_scored > 100);
        assert_true(variant & 4 ? w->stub.n_ahead > 1000 : w->stub.n_ahead == 0);
        if (!(variant & 2))
            assert_true(f.cached_tokens > 1000);
        struct kv_counts counts = kv_cache_counts(&w->cache, 0);
        assert_int_equal(counts.n_own + counts.n_locked, 0);
        end_world(w);
    }
}

static void identical_prompts_in_flight_are_computed_once(void **state)
{
    (void)state;
    for (int executor = 0; executor < N_EXECUTORS; executor++) {
        struct world *w = new_world(executor, POLICY_PREFILL_FIRST, KV_CACHE_RADIX, 32);
        for (uint64_t uid = 1; uid <= 6; uid++)
            submit(w, uid, 200, 5, 3);
        run_scheduler(w->scheduler);
        struct scheduler_figures f = scheduler_figures(w->scheduler);
        assert_int_equal(w->n_finished, 6);
        /* The shared 200 tokens once, and of each its own 5 and at most one page. */
        assert_true(f.prefill_tokens <= 200 + 6 * (5 + PAGE));
        end_world(w);
    }
}

/* One token is told before the first of the answer. */
static void the_shortest_prompt_is_scored(void **state)
{
    (void)state;
    for (int executor = 0; executor < N_EXECUTORS; executor++) {
        struct world *w = new_world(executor, POLICY_PREFILL_FIRST, KV_CACHE_RADIX, 32);
        submit(w, SCORED_EVERY, 0, 1, 3);
        run_scheduler(w->scheduler);
        assert_int_equal(w->n_scored, 1);
        end_world(w);
    }
}

/* They share the rows with logits that a step has, and leave one to each other request. */
static void prompts_that_are_scored_together_push_nobody_out(void **state)
{
    (void)state;
    for (int executor = 0; executor < N_EXECUTORS; executor++) {
        struct world *w = new_world(executor, POLICY_MIXED, KV_CACHE_RADIX, 64);
        for (uint64_t uid = 1; uid <= MAX_RUNNING; uid++)
            submit(w, uid * SCORED_EVERY + (uid > 3), 0, 30, 5);
        run_scheduler(w->scheduler);
        assert_int_equal(w->n_scored, 3);
        assert_int_equal(w->n_finished, MAX_RUNNING);
        assert_int_equal(scheduler_figures(w->scheduler).preemptions, 0);
        end_world(w);
    }
}

/* All rows of a prompt are computed although the cache has them. */
static void what_is_cached_is_scored_too(void **state)
{
    (void)state;
    for (int executor = 0; executor < N_EXECUTORS; executor++) {
        struct world *w = new_world(executor, POLICY_MIXED, KV_CACHE_RADIX, 32);
        submit(w, 1, 100, 1, 3);
        run_scheduler(w->scheduler);
        submit(w, SCORED_EVERY, 100, 1, 3);
        run_scheduler(w->scheduler);
        assert_int_equal(w->n_scored, 1);
        assert_int_equal(scheduler_figures(w->scheduler).cached_tokens, 0);
        end_world(w);
    }
}

static void cancel_is_idempotent_at_every_stage(void **state)
{
    (void)state;
    for (int executor = 0; executor < N_EXECUTORS; executor++) {
        struct world *w = new_world(executor, POLICY_PREFILL_FIRST, KV_CACHE_RADIX, 16);
        scheduler_cancel(w->scheduler, 99); /* never there */
        for (int n_steps = 0; n_steps < 12; n_steps++) {
            struct live *l = submit(w, 1, 0, 64, 20);
            for (int i = 0; i < n_steps; i++)
                step_scheduler(w->scheduler);
            if (l->uid == 0)
                continue;
            scheduler_cancel(w->scheduler, 1);
            assert_int_equal(l->finish, FINISH_CANCELLED);
            scheduler_cancel(w->scheduler, 1);
            struct scheduler_figures f = scheduler_figures(w->scheduler);
            assert_int_equal(f.n_running + f.n_waiting, 0);
            assert_true(scheduler_check(w->scheduler));
            run_scheduler(w->scheduler); /* a step may be in flight */
        }
        end_world(w);
    }
}

static void what_cannot_be_served_is_refused_with_a_sentence(void **state)
{
    (void)state;
    struct world *w = new_world(false, POLICY_PREFILL_FIRST, KV_CACHE_RADIX, 16);
    int32_t ids[CONTEXT + 1] = {0};
    struct error error;
    struct request_options o = {.uid = 1,
                                .ids = ids,
                                .n_ids = CONTEXT,
                                .max_tokens = 1,
                                .params = sampling_params_default()};
    assert_int_equal(scheduler_submit(w->scheduler, &o, &error), ERROR_LIMIT);
    assert_non_null(strstr(error.message, "400"));
    o.n_ids = 0;
    assert_int_equal(scheduler_submit(w->scheduler, &o, &error), ERROR_INVALID);
    o.n_ids = 3;
    ids[1] = VOCAB;
    assert_int_equal(scheduler_submit(w->scheduler, &o, &error), ERROR_INVALID);
    ids[1] = 0;
    o.params.temperature = -1;
    assert_int_equal(scheduler_submit(w->scheduler, &o, &error), ERROR_INVALID);
    o.params.temperature = 0;
    for (int i = 0; i < MAX_LIVE; i++)
        assert_int_equal(scheduler_submit(w->scheduler, &o, &error), OK);
    assert_int_equal(scheduler_submit(w->scheduler, &o, &error), ERROR_LIMIT);
    assert_non_null(strstr(error.message, "waiting"));
    end_world(w);
}

/* Those of the step that fails and of the one behind it, when it runs or when it is queued. */
static void a_failing_device_ends_its_requests(void **state)
{
    (void)state;
    for (int executor = 0; executor < N_EXECUTORS; executor++)
        for (int refuses = 0; refuses < 2; refuses++) {
            struct world *w = new_world(executor, POLICY_MIXED, KV_CACHE_RADIX, 64);
            struct live *a = submit(w, 1, 0, 10, 20), *b = submit(w, 2, 0, 12, 20);
            step_scheduler(w->scheduler);
            struct live *c = submit(w, 3, 0, 14, 20); /* its first step is the next one */
            w->fake.fails = !refuses;
            w->stub.refuses = refuses;
            struct error error;
            assert_int_equal(scheduler_step(w->scheduler, &error), ERROR_IO);
            assert_string_equal(error.message, "the device is gone");
            assert_int_equal(a->finish, FINISH_ERROR);
            assert_int_equal(b->finish, FINISH_ERROR);
            assert_int_equal(c->finish, FINISH_ERROR);
            assert_false(scheduler_has_work(w->scheduler));
            assert_true(scheduler_check(w->scheduler));
            assert_int_equal(kv_cache_counts(&w->cache, 0).n_free, N_PAGES);
            w->fake.fails = w->stub.refuses = false;
            submit(w, 4, 0, 10, 20);
            run_scheduler(w->scheduler);
            assert_int_equal(w->n_finished, 4);
            end_world(w);
        }
}

static void logits_without_a_number_end_their_request_alone(void **state)
{
    (void)state;
    for (int executor = 0; executor < N_EXECUTORS; executor++) {
        struct world *w = new_world(executor, POLICY_MIXED, KV_CACHE_RADIX, 64);
        /* None ends before its limit. */
        struct live *a = submit(w, 2 * MIN_TOKENS_EVERY, 0, 10, 20);
        struct live *b = submit(w, MIN_TOKENS_EVERY, 0, 12, 20);
        w->fake.broken_step = 6;
        run_scheduler(w->scheduler);
        assert_int_equal(a->finish, FINISH_ERROR);
        assert_int_equal(a->n_seen, 5);
        assert_int_equal(b->finish, FINISH_LENGTH);
        struct kv_counts counts = kv_cache_counts(&w->cache, 0);
        assert_int_equal(counts.n_own + counts.n_locked, 0);
        end_world(w);
    }
}

/* Decoding rows get a token in every step of the mixed policy, whatever is prefilled beside them.
 */
static void mixed_policy_never_starves_decode(void **state)
{
    (void)state;
    for (int executor = 0; executor < N_EXECUTORS; executor++) {
        struct world *w = new_world(executor, POLICY_MIXED, KV_CACHE_RADIX, 16);
        struct live *l = submit(w, 1, 0, 8, 100);
        step_scheduler(w->scheduler);
        submit(w, 2, 0, 300, 5);
        for (int i = 0; i < 10 && l->uid; i++) {
            int32_t before = l->n_seen;
            step_scheduler(w->scheduler);
            assert_int_equal(l->n_seen, before + 1);
        }
        run_scheduler(w->scheduler);
        end_world(w);
    }
}

/* Tokens of the request, with its answer as far as it was seen, that the tree has. */
static int32_t count_cached(struct world *w, const struct live *l)
{
    int32_t tokens[2 * CONTEXT + 1] = {0}, n = 0;
    for (int32_t i = 0; i < l->n_prompt; i++)
        tokens[n++] = l->prompt[i];
    for (int32_t i = 0; i < l->n_seen; i++)
        tokens[n++] = l->answer[i];
    struct kv_prompt prompt = {.tokens = tokens, .n_tokens = n + 1, .max_cached = n};
    return kv_cache_match(&w->cache, &prompt).length;
}

/* All whole pages but that of the last token, which nothing may have been computed behind. Were a
 * token shared before it is known, the page would be another one's. */
static void an_answer_is_shared_as_far_as_it_is_known(void **state)
{
    (void)state;
    srand(6);
    for (int executor = 0; executor < N_EXECUTORS; executor++)
        for (int n = 0; n < 20; n++) {
            struct world *w = new_world(executor, POLICY_MIXED, KV_CACHE_RADIX, 64);
            struct live *l = submit(w, 1, 0, 10 + n, 60);
            do {
                step_scheduler(w->scheduler);
                if (l->n_seen > 0)
                    assert_true(count_cached(w, l) >= (l->n_prompt + l->n_seen - 1) / PAGE * PAGE);
            } while (l->uid);
            end_world(w);
        }
}

/* An answer that ends by its limit costs no step more than without a queue; one that turns out to
 * have ended costs one, which counts nowhere. */
static void a_step_is_queued_behind_each_other_one(void **state)
{
    (void)state;
    srand(5);
    for (int n = 0; n < 200; n++) {
        struct world *w = new_world(true, POLICY_MIXED, KV_CACHE_RADIX, 64);
        submit(w, 1, 0, 10, 60);
        struct live l = *find_live(w, 1);
        run_scheduler(w->scheduler);
        int surplus = l.expected_finish == FINISH_STOP && l.n_answer < l.max_tokens;
        struct scheduler_figures f = scheduler_figures(w->scheduler);
        assert_int_equal(w->fake.n_steps, l.n_answer + surplus);
        assert_int_equal(w->stub.n_ahead, l.n_answer + surplus - 1);
        assert_int_equal(f.prefill_tokens, 10);
        assert_int_equal(f.decode_tokens, l.n_answer - 1);
        end_world(w);
    }
}

/* Nobody else gets more steps than a row that needs its last token to draw the next. */
static void rows_with_penalties_keep_pace(void **state)
{
    (void)state;
    struct world *w = new_world(true, POLICY_MIXED, KV_CACHE_RADIX, 64);
    struct live *a = submit(w, PENALTY_EVERY * MIN_TOKENS_EVERY, 0, 10, MIN_TOKENS);
    struct live *b = submit(w, MIN_TOKENS_EVERY, 0, 10, MIN_TOKENS);
    while (a->uid && b->uid) {
        step_scheduler(w->scheduler);
        assert_int_equal(a->n_seen, b->n_seen);
    }
    assert_int_equal(w->n_finished, 2);
    run_scheduler(w->scheduler);
    end_world(w);
}

static void a_scheduler_is_freed_with_a_step_in_flight(void **state)
{
    (void)state;
    struct world *w = new_world(true, POLICY_MIXED, KV_CACHE_RADIX, 64);
    submit(w, 1, 0, 10, 60);
    step_scheduler(w->scheduler);
    assert_int_equal(w->stub.n_queued - w->stub.n_taken, 1);
    end_world(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_order_of_events_gives_every_request_its_answer),
        cmocka_unit_test(identical_prompts_in_flight_are_computed_once),
        cmocka_unit_test(the_shortest_prompt_is_scored),
        cmocka_unit_test(what_is_cached_is_scored_too),
        cmocka_unit_test(prompts_that_are_scored_together_push_nobody_out),
        cmocka_unit_test(cancel_is_idempotent_at_every_stage),
        cmocka_unit_test(what_cannot_be_served_is_refused_with_a_sentence),
        cmocka_unit_test(a_failing_device_ends_its_requests),
        cmocka_unit_test(logits_without_a_number_end_their_request_alone),
        cmocka_unit_test(mixed_policy_never_starves_decode),
        cmocka_unit_test(an_answer_is_shared_as_far_as_it_is_known),
        cmocka_unit_test(a_step_is_queued_behind_each_other_one),
        cmocka_unit_test(rows_with_penalties_keep_pace),
        cmocka_unit_test(a_scheduler_is_freed_with_a_step_in_flight),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
