/* The scheduler over an executor that computes nothing but remembers what each KV slot would hold:
 * an answer is a function of the tokens that its row really sees, so any wrong page, lost or
 * repeated token changes it. */
#include "unit/scheduler_setup.h"

#include <math.h>

enum {
    N_PAGES = 256,
    MAX_SCORED = 10, /* after a step of 11 a prompt may end with a page */
    SCORED_EVERY = 7 /* requests */
};

/* --- the executor ----------------------------------------------------------------------------- */

struct fake {
    uint64_t held[N_PAGES * PAGE]; /* what a slot holds: the hash of its token and all before it */
    int n_steps;
    bool fails;
};

static int32_t next_token(uint64_t hash)
{
    return (int32_t)(hash % VOCAB);
}

/* That of the token behind the row with this hash. */
static float score_of(uint64_t hash, int32_t token)
{
    return -(float)(mix(hash, token) % 4096);
}

static enum status fake_run(void *context, const struct batch *b, const struct draw *draws,
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
            const struct draw *draw = &draws[wanted];
            hash = fake->held[b->slots[0][t]];
            int32_t token = draw->is_given ? draw->given : next_token(hash);
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
    int32_t n_prompt, n_answer, n_seen, max_tokens;
    bool is_scored;
    int32_t n_told; /* of the prompt */
    enum finish_reason finish, expected_finish;
};

struct world {
    struct fake fake;
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
    for (int32_t i = 0; i < l->n_prompt; i++)
        hash = mix(hash, l->prompt[i]);
    for (l->n_answer = 0; l->n_answer < l->max_tokens;) {
        int32_t token = next_token(hash);
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

static struct world *new_world(enum scheduler_policy policy, enum kv_cache_type type,
                               int32_t max_prefill)
{
    struct world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->scheduler = open_scheduler(
        &w->cache, (struct kv_cache_spec){.type = type, .n_groups = 1, .n_pages = {N_PAGES}},
        (struct scheduler_options){
            .policy = policy, .max_prefill_length = max_prefill, .max_scored = MAX_SCORED},
        (struct executor){.context = &w->fake, .run = fake_run}, on_event, w);
    return w;
}

static void end_world(struct world *w)
{
    scheduler_free(w->scheduler);
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
                                .max_tokens = max_tokens};
    assert_int_equal(scheduler_submit(w->scheduler, &o, NULL), OK);
    return l;
}

/* --- tests ------------------------------------------------------------------------------------ */

static void any_order_of_events_gives_every_request_its_answer(void **state)
{
    (void)state;
    enum { STEPS = 100000 };
    for (int variant = 0; variant < 4; variant++) {
        struct world *w =
            new_world(variant & 1 ? POLICY_MIXED : POLICY_PREFILL_FIRST,
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
        printf("variant %d: %d requests, %d scored, %llu steps, %llu preemptions, %llu cached "
               "tokens\n",
               variant, w->n_finished, w->n_scored, (unsigned long long)f.steps,
               (unsigned long long)f.preemptions, (unsigned long long)f.cached_tokens);

        assert_true(f.preemptions > 10 && w->n_scored > 100);
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
    struct world *w = new_world(POLICY_PREFILL_FIRST, KV_CACHE_RADIX, 32);
    for (uint64_t uid = 1; uid <= 6; uid++)
        submit(w, uid, 200, 5, 3);
    run_scheduler(w->scheduler);
    struct scheduler_figures f = scheduler_figures(w->scheduler);
    assert_int_equal(w->n_finished, 6);
    /* The shared 200 tokens once, and of each its own 5 and at most one page. */
    assert_true(f.prefill_tokens <= 200 + 6 * (5 + PAGE));
    end_world(w);
}

/* One token is told before the first of the answer. */
static void the_shortest_prompt_is_scored(void **state)
{
    (void)state;
    struct world *w = new_world(POLICY_PREFILL_FIRST, KV_CACHE_RADIX, 32);
    submit(w, SCORED_EVERY, 0, 1, 3);
    run_scheduler(w->scheduler);
    assert_int_equal(w->n_scored, 1);
    end_world(w);
}

/* They share the rows with logits that a step has, and leave one to each other request. */
static void prompts_that_are_scored_together_push_nobody_out(void **state)
{
    (void)state;
    struct world *w = new_world(POLICY_MIXED, KV_CACHE_RADIX, 64);
    for (uint64_t uid = 1; uid <= MAX_RUNNING; uid++)
        submit(w, uid * SCORED_EVERY + (uid > 3), 0, 30, 5);
    run_scheduler(w->scheduler);
    assert_int_equal(w->n_scored, 3);
    assert_int_equal(w->n_finished, MAX_RUNNING);
    assert_int_equal(scheduler_figures(w->scheduler).preemptions, 0);
    end_world(w);
}

/* All rows of a prompt are computed although the cache has them. */
static void what_is_cached_is_scored_too(void **state)
{
    (void)state;
    struct world *w = new_world(POLICY_MIXED, KV_CACHE_RADIX, 32);
    submit(w, 1, 100, 1, 3);
    run_scheduler(w->scheduler);
    submit(w, SCORED_EVERY, 100, 1, 3);
    run_scheduler(w->scheduler);
    assert_int_equal(w->n_scored, 1);
    assert_int_equal(scheduler_figures(w->scheduler).cached_tokens, 0);
    end_world(w);
}

static void cancel_is_idempotent_at_every_stage(void **state)
{
    (void)state;
    struct world *w = new_world(POLICY_PREFILL_FIRST, KV_CACHE_RADIX, 16);
    scheduler_cancel(w->scheduler, 99); /* never there */
    for (int n_steps = 0; n_steps < 12; n_steps++) {
        struct live *l = submit(w, 1, 0, 64, 20);
        for (int i = 0; i < n_steps; i++)
            scheduler_step(w->scheduler, NULL);
        if (l->uid == 0)
            continue;
        scheduler_cancel(w->scheduler, 1);
        assert_int_equal(l->finish, FINISH_CANCELLED);
        scheduler_cancel(w->scheduler, 1);
        assert_false(scheduler_has_work(w->scheduler));
        assert_true(scheduler_check(w->scheduler));
    }
    end_world(w);
}

static void what_cannot_be_served_is_refused_with_a_sentence(void **state)
{
    (void)state;
    struct world *w = new_world(POLICY_PREFILL_FIRST, KV_CACHE_RADIX, 16);
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

static void a_failing_device_ends_its_requests(void **state)
{
    (void)state;
    struct world *w = new_world(POLICY_PREFILL_FIRST, KV_CACHE_RADIX, 64);
    struct live *a = submit(w, 1, 0, 10, 20), *b = submit(w, 2, 0, 12, 20);
    scheduler_step(w->scheduler, NULL);
    w->fake.fails = true;
    struct error error;
    assert_int_equal(scheduler_step(w->scheduler, &error), ERROR_IO);
    assert_int_equal(a->finish, FINISH_ERROR);
    assert_int_equal(b->finish, FINISH_ERROR);
    assert_false(scheduler_has_work(w->scheduler));
    assert_true(scheduler_check(w->scheduler));
    end_world(w);
}

/* Decoding rows get a token in every step of the mixed policy, whatever is prefilled beside them.
 */
static void mixed_policy_never_starves_decode(void **state)
{
    (void)state;
    struct world *w = new_world(POLICY_MIXED, KV_CACHE_RADIX, 16);
    struct live *l = submit(w, 1, 0, 8, 100);
    scheduler_step(w->scheduler, NULL);
    submit(w, 2, 0, 300, 5);
    for (int i = 0; i < 10 && l->uid; i++) {
        int32_t before = l->n_seen;
        scheduler_step(w->scheduler, NULL);
        assert_int_equal(l->n_seen, before + 1);
    }
    run_scheduler(w->scheduler);
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
        cmocka_unit_test(mixed_policy_never_starves_decode),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
